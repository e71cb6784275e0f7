"""What grpcio gets of calls that succeed.

Owns the cases of answers, metadata, health, reflection and the large reply. Never takes a vector's numbers on trust:
they are compared with those of another method or another transport.
"""

import json
import math
import queue
import struct
import subprocess

import grpc
from byway.embedding.v1 import embedding_pb2, embedding_pb2_grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import proto_reflection_descriptor_database, reflection_pb2
from harness import DEFAULT_DIMENSIONS, MAX_BATCH, NULL_DIMENSIONS, PATIENCE_S, Setup, case, connections, equal, holds
from tei.v1 import tei_pb2, tei_pb2_grpc

SERVING = ["byway.embedding.v1.BatchEmbed", "tei.v1.Embed", "tei.v1.Info"]
UNBUILT = ["tei.v1.Predict", "tei.v1.Rerank", "tei.v1.Tokenize"]
# Each version of reflection lists itself, not the other.
V1, V1ALPHA = "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"
OTHERS = [*SERVING, *UNBUILT, "grpc.health.v1.Health"]


def connect(address: str, **options: int) -> grpc.Channel:
    """A channel whose connections are its own: by default, channels to one address share them."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(address, options=own + [(f"grpc.{name}", value) for name, value in options.items()])


def bytes_of(vector: list[float]) -> bytes:
    """The numbers as a matrix carries them: binary32, little-endian."""
    return struct.pack(f"<{len(vector)}f", *vector)


def texts(count: int) -> list[str]:
    return [f"text number {number}: ünïcödé ☺ {'word ' * (number % 7)}".strip() for number in range(count)]


@case("grpcio: Info says what is served")
def info(setup: Setup) -> None:
    with connect(setup.default) as channel:
        reply = tei_pb2_grpc.InfoStub(channel).Info(tei_pb2.InfoRequest(), timeout=PATIENCE_S)
    equal(reply.model_id, "all-MiniLM-L6-v2-int8", "model_id")
    equal(reply.model_type, tei_pb2.MODEL_TYPE_EMBEDDING, "model_type")
    equal(reply.max_client_batch_size, MAX_BATCH, "max_client_batch_size")
    equal(reply.max_input_length, 256, "max_input_length")
    holds(not reply.HasField("sha"), "sha is set, though builds do not record a commit")


@case("grpcio: Embed answers with a vector of length 1 and with what it cost")
def embed(setup: Setup) -> None:
    text = "What is deep learning?"
    with connect(setup.default) as channel:
        reply = tei_pb2_grpc.EmbedStub(channel).Embed(tei_pb2.EmbedRequest(inputs=text), timeout=PATIENCE_S)
    equal(len(reply.embeddings), DEFAULT_DIMENSIONS, "dimensions")
    length = math.sqrt(sum(value * value for value in reply.embeddings))
    holds(abs(length - 1) < 1e-3, f"the vector's length is {length}")
    equal(reply.metadata.compute_chars, len(text), "compute_chars")
    equal(reply.metadata.compute_tokens, 7, "compute_tokens")
    holds(reply.metadata.total_time_ns >= reply.metadata.inference_time_ns > 0, reply.metadata)


@case("grpcio: options of a request that differ from their defaults arrive")
def options(setup: Setup) -> None:
    long = "word " * 1000
    request = tei_pb2.EmbedRequest(
        inputs=long,
        truncate=True,
        normalize=False,
        truncation_direction=tei_pb2.TRUNCATION_DIRECTION_LEFT,
        dimensions=32,
    )
    with connect(setup.default) as channel:
        reply = tei_pb2_grpc.EmbedStub(channel).Embed(request, timeout=PATIENCE_S)
    equal((len(reply.embeddings), reply.metadata.compute_tokens), (32, 256), "dimensions and tokens")


@case("grpcio: Embed's headers are those of Text Embeddings Inference, and metadata of the client's does no harm")
def headers(setup: Setup) -> None:
    sent = (("x-request-id", "7"), ("trace-bin", bytes(range(256))), ("twice", "a"), ("twice", "b"))
    with connect(setup.default) as channel:
        stub = tei_pb2_grpc.EmbedStub(channel)
        request = tei_pb2.EmbedRequest(inputs="hello")
        _, call = stub.Embed.with_call(request, timeout=PATIENCE_S, metadata=sent)
    found = dict(call.initial_metadata())
    equal(found.get("x-compute-type"), "cpu", "x-compute-type")
    equal((found.get("x-compute-characters"), found.get("x-compute-tokens")), ("5", "3"), "characters and tokens")
    for name in ["x-compute-time", "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"]:
        holds(found.get(name, "").isdigit(), f"{name} is {found.get(name)!r}, and should be a number of milliseconds")
    equal((call.code(), call.details()), (grpc.StatusCode.OK, ""), "status")


@case("grpcio: EmbedStream answers 200 requests in their order, each as Embed does")
def embed_stream(setup: Setup) -> None:
    requests = [tei_pb2.EmbedRequest(inputs=text, dimensions=16) for text in texts(200)]
    with connect(setup.null) as channel:
        stub = tei_pb2_grpc.EmbedStub(channel)
        replies = list(stub.EmbedStream(iter(requests), timeout=PATIENCE_S))
        singles = [stub.Embed(request, timeout=PATIENCE_S) for request in requests]
    streamed, single = ([bytes_of(reply.embeddings) for reply in answers] for answers in (replies, singles))
    equal(streamed, single, "vectors")


@case("grpcio: EmbedStream answers each request before the next is sent")
def ping_pong(setup: Setup) -> None:
    requests: queue.Queue[tei_pb2.EmbedRequest | None] = queue.Queue()
    with connect(setup.default) as channel:
        call = tei_pb2_grpc.EmbedStub(channel).EmbedStream(iter(requests.get, None), timeout=PATIENCE_S)
        for number in range(5):
            requests.put(tei_pb2.EmbedRequest(inputs=f"text {number}"))
            equal(len(next(call).embeddings), DEFAULT_DIMENSIONS, f"answer {number}")
        requests.put(None)
        equal((list(call), call.code()), ([], grpc.StatusCode.OK), "further answers, and status")


@case("grpcio: EmbedStream without requests ends without answers")
def empty_stream(setup: Setup) -> None:
    with connect(setup.default) as channel:
        call = tei_pb2_grpc.EmbedStub(channel).EmbedStream(iter([]), timeout=PATIENCE_S)
        equal((list(call), call.code()), ([], grpc.StatusCode.OK), "answers and status")


@case("grpcio: EmbedBatch answers with one matrix, of the vectors that Embed answers with")
def batch(setup: Setup) -> None:
    inputs = texts(6)
    with connect(setup.default) as channel:
        stub = embedding_pb2_grpc.BatchEmbedStub(channel)
        reply = stub.EmbedBatch(embedding_pb2.EmbedBatchRequest(inputs=inputs), timeout=PATIENCE_S)
        one = tei_pb2_grpc.EmbedStub(channel).Embed
        vectors = [one(tei_pb2.EmbedRequest(inputs=text), timeout=PATIENCE_S).embeddings for text in inputs]
    equal((reply.rows, reply.dimensions), (6, DEFAULT_DIMENSIONS), "rows and dimensions")
    equal(reply.dtype, embedding_pb2.DATA_TYPE_F32_LE, "dtype")
    equal(reply.data, b"".join(map(bytes_of, vectors)), "data")


@case("grpcio: EmbedBatch's reply of 1 MiB is, byte for byte, what byway's own framing carries")
def large_batch(setup: Setup) -> None:
    inputs = texts(MAX_BATCH)
    with connect(setup.null) as channel:
        stub = embedding_pb2_grpc.BatchEmbedStub(channel)
        reply = stub.EmbedBatch(embedding_pb2.EmbedBatchRequest(inputs=inputs), timeout=PATIENCE_S)
    data = reply.data
    equal((reply.rows, reply.dimensions, len(data)), (MAX_BATCH, NULL_DIMENSIONS, 1 << 20), "size")
    command = [setup.program, "embed", "--url", f"byway://{setup.null}", "--transport", "tcp", "--json", *inputs]
    output = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    holds(output.returncode == 0, f"embedding-service embed: {output.stderr}")
    ours = json.loads(output.stdout)
    holds(ours["path"].startswith("tcp"), f"byway came over {ours['path']}")
    expected = b"".join(map(bytes_of, ours["embeddings"]))
    equal(len(expected), len(data), "size")
    different = [at for at in range(0, len(data), 4) if data[at : at + 4] != expected[at : at + 4]]
    equal(different, [], "offsets of floats that differ")


@case("grpcio: 400 calls, 64 at a time, share one connection")
def concurrent(setup: Setup) -> None:
    with connect(setup.null) as channel:
        stub = tei_pb2_grpc.EmbedStub(channel)
        pending, done = [], 0
        for text in texts(400):
            request = tei_pb2.EmbedRequest(inputs=text, dimensions=8)
            pending.append(stub.Embed.future(request, timeout=PATIENCE_S))
            if len(pending) == 64:
                done += len(pending.pop(0).result().embeddings)
        done += sum(len(call.result().embeddings) for call in pending)
        equal((done, len(connections(setup.null))), (400 * 8, 1), "numbers and connections")


@case("grpcio-health-checking: Check knows what is built, what is not, and what is not there")
def health(setup: Setup) -> None:
    serving = health_pb2.HealthCheckResponse.SERVING
    not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
    with connect(setup.default) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        expected = [("", serving), *((name, serving) for name in SERVING), *((name, not_serving) for name in UNBUILT)]
        for name, status in expected:
            reply = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=PATIENCE_S)
            equal(reply.status, status, f"status of {name!r}")
        try:
            stub.Check(health_pb2.HealthCheckRequest(service="tei.v1.Nothing"), timeout=PATIENCE_S)
        except grpc.RpcError as error:
            equal(error.code(), grpc.StatusCode.NOT_FOUND, "status of a service that is not there")
        else:
            raise AssertionError("a service that is not there has a status")


@case("grpcio-health-checking: Watch says the status at once, and stays open until it is cancelled")
def watch(setup: Setup) -> None:
    with connect(setup.default) as channel:
        request = health_pb2.HealthCheckRequest(service="tei.v1.Embed")
        call = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=PATIENCE_S)
        equal(next(call).status, health_pb2.HealthCheckResponse.SERVING, "first status")
        holds(call.is_active(), "the call ended with its first message")
        call.cancel()
        equal(call.code(), grpc.StatusCode.CANCELLED, "status")


@case("grpcio-reflection: v1alpha lists every service, and describes them as their .proto files do")
def reflection_v1alpha(setup: Setup) -> None:
    with connect(setup.default) as channel:
        database = proto_reflection_descriptor_database.ProtoReflectionDescriptorDatabase(channel)
        equal(sorted(database.get_services()), sorted([*OTHERS, V1ALPHA]), "services")
        for file in FileDescriptorSet.FromString(setup.descriptors).file:
            equal(bare(database.FindFileByName(file.name)), bare(file), file.name)


@case("grpcio-reflection: v1 says the same")
def reflection_v1(setup: Setup) -> None:
    # The package only calls v1alpha. Its messages are v1's, by another name.
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="tei.v1.Embed.EmbedStream"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="tei.v1.Nothing"),
    ]
    with connect(setup.default) as channel:
        reflect = channel.stream_stream(
            f"/{V1}/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        services, file, missing = list(reflect(iter(asked[:2]), timeout=PATIENCE_S)) + answer_or_code(reflect, asked[2])
    names = [service.name for service in services.list_services_response.service]
    equal(sorted(names), sorted([*OTHERS, V1]), "services")
    files = [FileDescriptorProto.FromString(content) for content in file.file_descriptor_response.file_descriptor_proto]
    ours = [file for file in FileDescriptorSet.FromString(setup.descriptors).file if file.package == "tei.v1"]
    equal([bare(file) for file in files], [bare(file) for file in ours], "file of EmbedStream")
    equal(missing, grpc.StatusCode.NOT_FOUND, "a symbol that is not there")


def answer_or_code(reflect: grpc.StreamStreamMultiCallable, request: reflection_pb2.ServerReflectionRequest) -> list:
    """The code of the answer, whether it comes as a message, as the protocol says, or as the end of the call."""
    try:
        (reply,) = reflect(iter([request]), timeout=PATIENCE_S)
        number = reply.error_response.error_code
        return [next(code for code in grpc.StatusCode if code.value[0] == number)]
    except grpc.RpcError as error:
        return [error.code()]


def bare(file: FileDescriptorProto) -> FileDescriptorProto:
    """A file's description without its comments, which not every compiler keeps."""
    file.ClearField("source_code_info")
    return file
