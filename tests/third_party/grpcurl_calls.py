"""What grpcurl gets: a Go client that knows the services by reflection (v1alpha) alone.

Owns how grpcurl is run and the cases of it. Invariant: each run has a time limit of grpcurl's own and one of ours.
"""

import base64
import json
import math
import subprocess

from grpcio_calls import OTHERS, V1ALPHA
from harness import DEFAULT_DIMENSIONS, PATIENCE_S, Setup, case, equal, holds

# grpcurl exits with this, plus the code of the status that a call ended with.
STATUS_OFFSET = 64
INVALID_ARGUMENT, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED = 3, 4, 8, 12


Output = subprocess.CompletedProcess[str]


def grpcurl(setup: Setup, *args: str, stdin: str = "", max_time: float = PATIENCE_S) -> Output:
    command = [setup.grpcurl, "-plaintext", "-max-time", str(max_time), *args]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S + 5)


def answers(output: Output) -> list[dict]:
    """The messages that a successful run printed, one JSON object after the other."""
    equal(output.returncode, 0, f"status of grpcurl ({output.stderr.strip()})")
    decoder, rest, found = json.JSONDecoder(), output.stdout.strip(), []
    while rest:
        message, end = decoder.raw_decode(rest)
        found.append(message)
        rest = rest[end:].lstrip()
    return found


def fails(output: Output, code: int, text: str) -> None:
    equal(output.returncode, STATUS_OFFSET + code, f"status of grpcurl ({output.stderr.strip()})")
    holds(text in output.stderr, f"{text!r} is not in {output.stderr!r}")


@case("grpcurl: list and describe, by reflection")
def reflection(setup: Setup) -> None:
    listed = grpcurl(setup, setup.default, "list")
    equal((listed.returncode, listed.stdout.split()), (0, sorted([*OTHERS, V1ALPHA])), f"services ({listed.stderr})")
    described = grpcurl(setup, setup.default, "describe", "tei.v1.Embed.EmbedStream")
    text = "rpc EmbedStream ( stream .tei.v1.EmbedRequest ) returns ( stream .tei.v1.EmbedResponse );"
    holds(text in described.stdout, described.stdout + described.stderr)


@case("grpcurl: Info and Embed")
def unary(setup: Setup) -> None:
    (info,) = answers(grpcurl(setup, setup.default, "tei.v1.Info/Info"))
    equal((info["modelId"], info["maxInputLength"]), ("all-MiniLM-L6-v2-int8", 256), "Info")
    (reply,) = answers(grpcurl(setup, "-d", '{"inputs": "hello"}', setup.default, "tei.v1.Embed/Embed"))
    equal((len(reply["embeddings"]), reply["metadata"]["computeTokens"]), (DEFAULT_DIMENSIONS, 3), "Embed")
    length = math.sqrt(sum(value * value for value in reply["embeddings"]))
    holds(abs(length - 1) < 1e-3, f"the vector's length is {length}")


@case("grpcurl: EmbedStream")
def stream(setup: Setup) -> None:
    requests = "".join(json.dumps({"inputs": text, "dimensions": 4}) for text in ["one", "two", "three"])
    method = "tei.v1.Embed/EmbedStream"
    replies = answers(grpcurl(setup, "-d", "@", setup.null, method, stdin=requests))
    singles = answers(grpcurl(setup, "-d", '{"inputs": "two", "dimensions": 4}', setup.null, "tei.v1.Embed/Embed"))
    equal([len(reply["embeddings"]) for reply in replies], [4, 4, 4], "answers")
    equal(replies[1]["embeddings"], singles[0]["embeddings"], "the second answer")


@case("grpcurl: EmbedBatch, 1 MiB")
def batch(setup: Setup) -> None:
    request = json.dumps({"inputs": [f"text {number}" for number in range(32)]})
    output = grpcurl(setup, "-d", "@", setup.null, "byway.embedding.v1.BatchEmbed/EmbedBatch", stdin=request)
    (reply,) = answers(output)
    equal((reply["rows"], reply["dtype"]), (32, "DATA_TYPE_F32_LE"), "rows and dtype")
    equal(len(base64.b64decode(reply["data"])), 1 << 20, "size of data")


@case("grpcurl: headers of Embed")
def headers(setup: Setup) -> None:
    options = ["-v", "-H", "x-request-id: 7", "-d", '{"inputs": "hello"}']
    output = grpcurl(setup, *options, setup.default, "tei.v1.Embed/Embed")
    lines = output.stdout.splitlines()
    for line in ["content-type: application/grpc", "x-compute-type: cpu", "x-compute-characters: 5"]:
        holds(line in lines, f"{line!r} is not in {output.stdout[:600]}")
    holds(any(line.startswith("x-total-time: ") for line in lines), output.stdout[:600])


@case("grpcurl: health")
def health(setup: Setup) -> None:
    check = "grpc.health.v1.Health/Check"
    equal(answers(grpcurl(setup, setup.default, check)), [{"status": "SERVING"}], "the server")
    request = '{"service": "tei.v1.Rerank"}'
    equal(answers(grpcurl(setup, "-d", request, setup.default, check)), [{"status": "NOT_SERVING"}], "Rerank")
    watched = grpcurl(setup, setup.default, "grpc.health.v1.Health/Watch", max_time=1)
    equal(json.loads(watched.stdout), {"status": "SERVING"}, "first message of Watch")
    fails(watched, DEADLINE_EXCEEDED, "DeadlineExceeded")


@case("grpcurl: errors have the server's codes and words")
def errors(setup: Setup) -> None:
    empty = grpcurl(setup, "-d", '{"inputs": ""}', setup.default, "tei.v1.Embed/Embed")
    fails(empty, INVALID_ARGUMENT, "Input validation error: `inputs` cannot be empty")
    unbuilt = grpcurl(setup, "-d", '{"inputs": "text"}', setup.default, "tei.v1.Predict/Predict")
    fails(unbuilt, UNIMPLEMENTED, "tei.v1.Predict/Predict is not built yet")
    large = grpcurl(setup, "-d", "@", setup.null, "tei.v1.Embed/Embed", stdin=json.dumps({"inputs": "x" * (5 << 20)}))
    fails(large, RESOURCE_EXHAUSTED, "larger than")
    # Reflection would keep a method from being called that is not there; a file of ours does not.
    (setup.scratch / "nothing.proto").write_text(
        'syntax = "proto3"; package tei.v1; message M {} service Embed { rpc Nothing(M) returns (M); }'
    )
    ours = ["-import-path", str(setup.scratch), "-proto", "nothing.proto"]
    fails(grpcurl(setup, *ours, setup.default, "tei.v1.Embed/Nothing"), UNIMPLEMENTED, "Nothing")


@case("grpcurl: a deadline that is too short ends the call in time")
def deadline(setup: Setup) -> None:
    # With files, since reflection has no deadline of its own and would take the whole time.
    files = ["-import-path", str(setup.protos), "-proto", "tei/v1/tei.proto"]
    request = json.dumps({"inputs": "word " * 200})
    for max_time in [0.001, 0.003, 0.01]:
        output = grpcurl(setup, *files, "-d", request, setup.default, "tei.v1.Embed/Embed", max_time=max_time)
        # It is the client that notices first, before there is a connection or after, or else the server.
        ended = output.returncode in (0, STATUS_OFFSET + DEADLINE_EXCEEDED)
        holds(ended or "deadline exceeded" in output.stderr, output.stderr)
    answers(grpcurl(setup, *files, "-d", request, setup.default, "tei.v1.Embed/Embed"))
