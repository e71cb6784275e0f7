"""What grpcio gets of calls that fail: deadlines, errors, limits, cancellation, compression.

Owns the cases of failures. Invariant: after a call that failed, the next one on the same channel succeeds, and where
it is said, on the same connection.
"""

import queue
import time

import grpc
from byway.embedding.v1 import embedding_pb2, embedding_pb2_grpc
from grpcio_calls import connect
from harness import MAX_BATCH, PATIENCE_S, Setup, case, connections, equal, holds
from tei.v1 import tei_pb2, tei_pb2_grpc

# Above what a service takes by default, 4 MiB, and below what byway lets a connection carry, 64 MiB.
TOO_LARGE = 5 << 20


def failure(call: object, *args: object, **options: object) -> grpc.RpcError:
    """The error that a call ends with."""
    try:
        reply = call(*args, timeout=PATIENCE_S, **options)  # type: ignore[operator]
        if hasattr(reply, "__next__"):
            list(reply)
    except grpc.RpcError as error:
        return error
    raise AssertionError("the call succeeded")


def still_serves(channel: grpc.Channel) -> None:
    tei_pb2_grpc.EmbedStub(channel).Embed(tei_pb2.EmbedRequest(inputs="hello"), timeout=PATIENCE_S)


@case("grpcio: a text that is empty is INVALID_ARGUMENT, in the words of Text Embeddings Inference")
def empty_input(setup: Setup) -> None:
    with connect(setup.default) as channel:
        stub = tei_pb2_grpc.EmbedStub(channel)
        batch = embedding_pb2_grpc.BatchEmbedStub(channel).EmbedBatch
        errors = [
            failure(stub.Embed, tei_pb2.EmbedRequest(inputs="")),
            failure(stub.EmbedStream, iter([tei_pb2.EmbedRequest(inputs="")])),
            failure(batch, embedding_pb2.EmbedBatchRequest(inputs=["a", ""])),
        ]
        expected = (grpc.StatusCode.INVALID_ARGUMENT, "Input validation error: `inputs` cannot be empty")
        equal([(error.code(), error.details()) for error in errors], [expected] * 3, "status")


@case("grpcio: EmbedStream's first error ends it, after the answers before it")
def stream_error(setup: Setup) -> None:
    answers = 0
    with connect(setup.default) as channel:
        requests = [tei_pb2.EmbedRequest(inputs=text) for text in ["one", "two", "", "three"]]
        call = tei_pb2_grpc.EmbedStub(channel).EmbedStream(iter(requests), timeout=PATIENCE_S)
        try:
            for _ in call:
                answers += 1
        except grpc.RpcError:
            pass
        equal((answers, call.code()), (2, grpc.StatusCode.INVALID_ARGUMENT), "answers and status")
        still_serves(channel)


@case("grpcio: more texts than a batch may have are INVALID_ARGUMENT")
def batch_size(setup: Setup) -> None:
    with connect(setup.default) as channel:
        request = embedding_pb2.EmbedBatchRequest(inputs=["text"] * (MAX_BATCH + 1))
        error = failure(embedding_pb2_grpc.BatchEmbedStub(channel).EmbedBatch, request)
        text = "Input validation error: batch size 33 > maximum allowed batch size 32"
        equal((error.code(), error.details()), (grpc.StatusCode.INVALID_ARGUMENT, text), "status")


@case("grpcio: methods and services that are not there, and those that are not built, are UNIMPLEMENTED")
def unimplemented(setup: Setup) -> None:
    with connect(setup.default) as channel:
        for path in ["/tei.v1.Embed/Nothing", "/tei.v1.Nothing/Embed", "/nothing"]:
            error = failure(channel.unary_unary(path), b"")
            equal(error.code(), grpc.StatusCode.UNIMPLEMENTED, path)
            error = failure(channel.stream_stream(path), iter([b"", b""]))
            equal(error.code(), grpc.StatusCode.UNIMPLEMENTED, f"{path}, as a stream")
        error = failure(tei_pb2_grpc.PredictStub(channel).Predict, tei_pb2.PredictRequest(inputs="text"))
        equal(error.code(), grpc.StatusCode.UNIMPLEMENTED, "Predict")
        holds("tei.v1.Predict/Predict is not built" in error.details(), error.details())
        still_serves(channel)


@case("grpcio: a request that is too large is RESOURCE_EXHAUSTED, and the connection lives on")
def too_large(setup: Setup) -> None:
    with connect(setup.null) as channel:
        still_serves(channel)
        before = connections(setup.null)
        stub = tei_pb2_grpc.EmbedStub(channel)
        request = tei_pb2.EmbedRequest(inputs="x" * TOO_LARGE)
        for error in [failure(stub.Embed, request), failure(stub.EmbedStream, iter([request]))]:
            equal(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED, f"status ({error.details()})")
            holds("larger than" in error.details() and str(4 << 20) in error.details(), error.details())
        still_serves(channel)
        equal((len(before), connections(setup.null)), (1, before), "connections")


@case("grpcio: a request that is not what its method takes is an error, and the connection lives on")
def garbage(setup: Setup) -> None:
    with connect(setup.null) as channel:
        still_serves(channel)
        before = connections(setup.null)
        error = failure(channel.unary_unary("/tei.v1.Embed/Embed"), b"\xff\xff\xff\xff")
        holds(error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT), error)
        still_serves(channel)
        equal((len(before), connections(setup.null)), (1, before), "connections")


@case("grpcio: a deadline that is too short ends a call in time, one that is not lets it pass")
def deadlines(setup: Setup) -> None:
    with connect(setup.default) as channel:
        stub = tei_pb2_grpc.EmbedStub(channel)
        request = tei_pb2.EmbedRequest(inputs="word " * 200)
        still_serves(channel)
        codes = []
        for timeout in [0.000001, 0.0005, 0.001, 0.002, 0.005] * 4:
            start = time.monotonic()
            try:
                stub.Embed(request, timeout=timeout)
                codes.append(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                codes.append(error.code())
            holds(time.monotonic() - start < 2, f"a call with {timeout} s took {time.monotonic() - start:.3f} s")
        allowed = {grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED}
        holds(set(codes) <= allowed and codes[0] == grpc.StatusCode.DEADLINE_EXCEEDED, codes)
        stub.Embed(request, timeout=3600)
        still_serves(channel)


@case("grpcio: a deadline ends a stream that only waits")
def stream_deadline(setup: Setup) -> None:
    requests: queue.Queue[tei_pb2.EmbedRequest | None] = queue.Queue()
    requests.put(tei_pb2.EmbedRequest(inputs="hello"))
    with connect(setup.default) as channel:
        start = time.monotonic()
        call = tei_pb2_grpc.EmbedStub(channel).EmbedStream(iter(requests.get, None), timeout=0.5)
        answers = 0
        try:
            for _ in call:
                answers += 1
        except grpc.RpcError:
            pass
        requests.put(None)
        equal((answers, call.code()), (1, grpc.StatusCode.DEADLINE_EXCEEDED), "answers and status")
        holds(0.4 < time.monotonic() - start < 5, f"it took {time.monotonic() - start:.3f} s")
        still_serves(channel)


@case("grpcio: a stream is cancelled before, between and after answers, and the connection lives on")
def cancel(setup: Setup) -> None:
    with connect(setup.default) as channel:
        still_serves(channel)
        before = connections(setup.default)
        stub = tei_pb2_grpc.EmbedStub(channel)
        for answers in [0, 1, 3]:
            requests: queue.Queue[tei_pb2.EmbedRequest | None] = queue.Queue()
            for number in range(3):
                requests.put(tei_pb2.EmbedRequest(inputs=f"text {number}"))
            call = stub.EmbedStream(iter(requests.get, None), timeout=PATIENCE_S)
            for _ in range(answers):
                next(call)
            call.cancel()
            requests.put(None)
            equal(call.code(), grpc.StatusCode.CANCELLED, f"status after {answers} answers")
        unary = stub.Embed.future(tei_pb2.EmbedRequest(inputs="word " * 200), timeout=PATIENCE_S)
        unary.cancel()
        equal(unary.cancelled(), True, "a cancelled Embed")
        still_serves(channel)
        equal((len(before), connections(setup.default)), (1, before), "connections")


@case("grpcio: compressed requests are UNIMPLEMENTED and say why, and the connection lives on")
def compression(setup: Setup) -> None:
    with connect(setup.default) as channel:
        still_serves(channel)
        before = connections(setup.default)
        stub = tei_pb2_grpc.EmbedStub(channel)
        request = tei_pb2.EmbedRequest(inputs="word " * 100)
        for kind, name in [(grpc.Compression.Gzip, "gzip"), (grpc.Compression.Deflate, "deflate")]:
            for error in [
                failure(stub.Embed, request, compression=kind),
                failure(stub.EmbedStream, iter([request]), compression=kind),
            ]:
                equal(error.code(), grpc.StatusCode.UNIMPLEMENTED, f"status ({error.details()})")
                holds("compressed" in error.details() and name in error.details(), error.details())
        stub.Embed(request, timeout=PATIENCE_S, compression=grpc.Compression.NoCompression)
        still_serves(channel)
        equal((len(before), connections(setup.default)), (1, before), "connections")
