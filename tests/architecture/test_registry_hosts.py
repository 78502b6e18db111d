"""No file names the host of a package registry: where packages come from is the installer's to configure.

A checkout that names one builds nowhere else: not behind a mirror, and not offline.
"""

from tests.architecture.sources import repository_files, within

# In two parts each, so that this file does not name them either.
_HOSTS = tuple(
    ".".join(parts).encode()
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("download.pytorch", "org"),
        ("anaconda", "org"),
        ("anaconda", "com"),
        ("registry.npmjs", "org"),
        ("docker", "io"),
        ("ghcr", "io"),
        ("quay", "io"),
        ("nvcr", "io"),
        ("crates", "io"),
    )
)


def test_no_file_names_a_registry_host() -> None:
    named = [
        f"{within(path)} names {host.decode()}"
        for path in repository_files()
        for host in _HOSTS
        if host in path.read_bytes().lower()
    ]
    assert not named, "configure the installer instead (pip config, a mirror):\n" + "\n".join(named)
