"""What the distribution holds: the packages under marlflow/, and the folder conf/ as the package marlflow.conf.

Nearly everything else is declared in pyproject.toml. The packages are not, because setuptools takes there either
package discovery or a list that names every package by hand, and only a list can hold the renamed folder. The
description is not, because the README links to files of the source folder, which a package index does not have.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup


def description() -> str:
    """Return the README without pictures and the targets of links into the source folder."""
    readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    readme = re.sub(r"^!\[.*\]\(.*\)\n\n", "", readme, flags=re.M)
    return re.sub(r"\[([^]]+)\]\((?!https?:|#)[^)]+\)", r"\1", readme)


setup(
    packages=[*find_packages(include=["marlflow", "marlflow.*"]), "marlflow.conf"],
    package_dir={"marlflow.conf": "conf"},
    long_description=description(),
    long_description_content_type="text/markdown",
)
