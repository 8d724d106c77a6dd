# Each command does all of its own set-up: `make demo`, `make test`, `make docs`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LOWEST ?= .venv-lowest
# Installing builds it; see hatch_build.py.
NATIVE := src/congeal/geometry/native.c hatch_build.py

# Where this is set every process compiles the package anew, and the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check-all lowest docs lint types golden browser clean

demo: $(VENV)/.installed
	$(BIN)/congeal demo -o demo

# The environment of the lowest versions is for tests/test_lowest.py.
test: $(VENV)/.installed-dev $(LOWEST)/.installed browser
# One thread for each of the four: NumPy reads it when it is loaded, by a plugin and before conftest.py.
	LOWEST=$(LOWEST) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 4 --dist worksteal

# More of the tests with the lowest version of every dependency than `make test` runs with them.
LOWEST_TESTS := tests/images tests/test_run.py tests/transforms tests/test_export.py tests/cli/test_cli.py \
  tests/propagate/test_propagate.py tests/studio/test_studio.py tests/methods/test_lsc.py tests/methods/dprc/test_onnx.py \
  tests/test_readers_fuzzed.py tests/test_faults.py tests/hostile
lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pytest -q $(LOWEST_TESTS)

# What takes longer than `make test` should: more tests with the lowest versions, fuzzing at length, golden numbers.
check-all: test lowest golden
	$(BIN)/python benchmarks/fuzz.py

# An environment of its own with the lowest versions. Only torch, of which there is one build, is that of $(VENV).
$(LOWEST)/.installed: pyproject.toml constraints-lowest.txt $(VENV)/.installed-dev
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(LOWEST)
	echo 'torch ; python_version < "3"' > $(LOWEST)/not-torch.txt
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --only-binary :all: -c constraints-lowest.txt \
	  --override $(LOWEST)/not-torch.txt -e '.[all]' pytest hypothesis scikit-image
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(LOWEST)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
	touch $@

# The manual and the API reference; a broken link fails. The tests build them too (tests/test_docs.py).
docs: $(VENV)/.installed-dev
	$(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# Poses, scores, verdicts and CPU seconds against a stored run, which is made first where there is none.
GOLDEN ?= golden.npz
golden: $(VENV)/.installed-dev
	test -e $(GOLDEN) || $(BIN)/python benchmarks/golden.py --store $(GOLDEN)
	$(BIN)/python benchmarks/golden.py --against $(GOLDEN)

# The constraints file pins torch, so that no accelerator packages are pulled in.
$(VENV)/.installed: pyproject.toml constraints.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.installed

# The report is tested in a real browser. Where it cannot be installed, those tests skip and say why.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "no Chromium here: the browser tests will be skipped"

clean:
	rm -rf $(VENV) $(LOWEST) demo site
