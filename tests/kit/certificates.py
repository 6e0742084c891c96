"""A certificate authority for tests, and the certificates of a server and a client, made with openssl."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    """A directory of PEM files."""

    directory: Path

    def __call__(self, name: str) -> str:
        """Return the path of a file, for example of ``ca.crt``."""
        return str(self.directory / name)


def make(directory: Path) -> Certificates:
    """Make three pairs of files, each a ``.crt`` and a ``.key``: ``ca``, ``server`` (for 127.0.0.1) and ``client``."""
    directory.mkdir()
    program = shutil.which("openssl")
    assert program is not None, "openssl is not on PATH"

    def openssl(*words: str) -> None:
        subprocess.run([program, *words], cwd=directory, check=True, capture_output=True)

    # A key on a curve is made in a millisecond; an RSA key takes half a second.
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    # From Python 3.13 on, an authority must say what its key is for, and a certificate who has signed it.
    openssl(
        *(*new, "-x509", "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )
    (directory / "names").write_text(
        "subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
    )
    for who in ("server", "client"):
        openssl(*new, "-subj", f"/CN={who}", "-keyout", f"{who}.key", "-out", f"{who}.csr")
        openssl(
            *("x509", "-req", "-days", "2", "-in", f"{who}.csr", "-out", f"{who}.crt"),
            *("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"),
        )
    return Certificates(directory)
