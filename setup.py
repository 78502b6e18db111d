"""What the distribution holds: the packages under marlflow/, and the folder conf/ as the package marlflow.conf.

Everything else is declared in pyproject.toml. This part is not, because setuptools takes there either package
discovery or a list that names every package by hand, and only a list can hold the renamed folder.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["marlflow", "marlflow.*"]), "marlflow.conf"],
    package_dir={"marlflow.conf": "conf"},
)
