"""The deep method: a densely fused spatial transformer trained on likeness, complexity and answers it makes itself."""
