"""Calls a running embedding-service with clients that are not ours: grpcio (C++ inside) and grpcurl (Go).

Owns the command line and the stubs, which grpcio-tools makes of the service's own .proto files. Started by
`cargo xtask third-party`, which starts the servers, too. Exits with 0 if every case passed.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

import harness

PROTOS = ["tei/v1/tei.proto", "byway/embedding/v1/embedding.proto"]


def make_stubs(protos: Path, target: Path) -> bytes:
    """Makes modules of the .proto files, and a FileDescriptorSet."""
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    descriptors = target / "descriptors"
    outputs = [f"--python_out={target}", f"--grpc_python_out={target}", f"--descriptor_set_out={descriptors}"]
    if protoc.main(["protoc", f"-I{protos}", f"-I{well_known}", *outputs, *PROTOS]) != 0:
        sys.exit(f"protoc could not make stubs of {', '.join(PROTOS)} in {protos}")
    sys.path.insert(0, str(target))
    return descriptors.read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description="Calls a running embedding-service with grpcio and grpcurl.")
    parser.add_argument("--default", required=True, help="host:port of a server with the default model")
    parser.add_argument("--null", required=True, help=f"host:port of a server of null:{harness.NULL_DIMENSIONS}")
    parser.add_argument("--program", type=Path, required=True, help="embedding-service")
    parser.add_argument("--grpcurl", type=Path, required=True, help="grpcurl")
    parser.add_argument("--protos", type=Path, required=True, help="folder that imports of .proto files start from")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        stubs = folder / "stubs"
        stubs.mkdir()
        descriptors = make_stubs(args.protos, stubs)
        # They import the stubs, so not before these are there. Importing them lists their cases.
        import grpcio_calls  # noqa: F401
        import grpcio_failures  # noqa: F401
        import grpcurl_calls  # noqa: F401

        setup = harness.Setup(args.default, args.null, args.program, args.grpcurl, args.protos, descriptors, folder)
        passed = harness.run(setup)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
