"""The methods: one file each, on the contract of `base.py`, named in `registry.py`."""
