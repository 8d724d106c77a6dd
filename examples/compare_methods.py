"""Compare methods, or settings of one method, on the same images.

    python examples/compare_methods.py

Writes example-comparison/ with table.md, table.csv, table.json and report.html.
"""

import congeal

if __name__ == "__main__":
    rows = congeal.compare(
        "digits:2",
        ["lsc@rigid", "lsc@robust"],
        "example-comparison",
        params={"lsc@rigid": {"motion": "rigid"}, "lsc@robust": {"robust": 0.2}},
        size=28,
        limit=60,
    )
    for row in sorted(rows, key=lambda row: -row["likeness_after"]):
        print(
            f"{row['method']:<12} likeness {row['likeness_after']:.3f}  {row['apsnr_after']:.2f} dB  {row['verdict']}"
        )
