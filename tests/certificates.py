"""Certificates of tests: authorities, and what they sign. A key is next to its certificate (``.key``)."""

from __future__ import annotations

import subprocess
from pathlib import Path

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def authority(folder: Path, name: str) -> Path:
    """A root that signs certificates."""
    made = folder / f"{name}.crt"
    names = ("-subj", f"/CN={name}", "-days", "2", "-keyout", str(made.with_suffix(".key")), "-out", str(made))
    _openssl("req", "-x509", *CURVE, *names)
    return made


def signed_by(root: Path, name: str, *names: str) -> Path:
    """A certificate for ``names``, such as ``DNS:log.example``; the root follows it in the file, as a chain."""
    made = root.with_name(f"{name}.crt")
    request, extensions = made.with_suffix(".csr"), made.with_suffix(".ext")
    extensions.write_text("subjectAltName=" + ",".join(names))
    keys = ("-keyout", str(made.with_suffix(".key")), "-out", str(request))
    _openssl("req", "-new", *CURVE, "-subj", f"/CN={name}", *keys)
    signer = ("-CA", str(root), "-CAkey", str(root.with_suffix(".key")), "-CAcreateserial", "-days", "2")
    _openssl("x509", "-req", "-in", str(request), *signer, "-extfile", str(extensions), "-out", str(made))
    made.write_text(made.read_text() + root.read_text())
    return made
