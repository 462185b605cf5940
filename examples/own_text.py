"""Cluster the text files of a folder, and write a page that shows what the clusters are about.

    python examples/own_text.py FOLDER -k 5

Without a folder it clusters docstrings of three packages that are installed with this one.
"""

import argparse
from pathlib import Path

from gmkcf_dask import GMKCF
from gmkcf_dask.corpus import docstring_documents


def read_texts(folder: Path | None) -> dict[str, str]:
    """Texts by name."""
    if folder is None:
        packages = {name: [name] for name in ("numpy.random", "scipy.linalg", "click")}
        return {document.id: document.text for document in docstring_documents(packages)}
    files = sorted(folder.rglob("*.txt"))
    return {str(file.relative_to(folder)): file.read_text(encoding="utf-8") for file in files}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("-k", type=int, default=3, help="number of clusters")
    parser.add_argument("--report", type=Path, default=Path("report.html"))
    options = parser.parse_args()

    texts = read_texts(options.folder)
    model = GMKCF(options.k, random_state=0).fit(list(texts.values()))

    insight = model.explain(ids=texts)  # the same content as the page, as plain values
    for cluster in insight["clusters"]:
        terms = ", ".join(entry["term"] for entry in cluster["terms"][:6])
        print(f"{cluster['size']:5} documents: {terms}")
    print(f"Open {model.report(options.report)} in a browser.")


if __name__ == "__main__":
    main()
