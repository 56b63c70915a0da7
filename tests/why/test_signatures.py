from __future__ import annotations

import re

import pytest

from platform_launch.doctor.catalogue import REFUSALS
from platform_launch.errors import LaunchError
from platform_launch.events import CATALOGUE as EVENTS
from platform_launch.events import marked
from platform_launch.why.lines.vocabulary import Vocabulary, squeeze
from platform_launch.why.messages.signatures import Signature, SignatureRole, catalogue
from tests.lab.needs import takes_long
from tests.why.conftest import Explain
from tests.why.corpus import examples

ALL = catalogue().signatures
EXAMPLES = [(catalogue()[name], line) for name, lines in examples("signatures").items() for line in lines]
MESSAGES = [(s, e) for s, e in EXAMPLES if s.role is not SignatureRole.NOISE]
# Chosen by other means than a line of the log.
WITHOUT_PATTERN = {
    "killed_from_outside", "caught_exception", "python_exception", "rank_exited",
    "traceback_cut", "parent_gone", "unknown_error", "first_collective",
    *(one.id for one in ALL if one.narrows and not one.patterns),
}  # fmt: skip


def shown_by(example: str) -> Signature | None:
    """The signature that a line alone shows."""
    if own := marked(example):
        return catalogue().of_event(own[1])
    match = catalogue().match(example)
    return None if match is None else match.signature


def test_each_example_shows_its_own_signature() -> None:
    wrong = [
        (signature.id, found and found.id, example)
        for signature, example in MESSAGES
        if (found := shown_by(example)) is not signature or catalogue().is_noise(example)
    ]
    assert wrong == []


@takes_long
def test_each_example_is_found_among_lines_of_progress(explain_text: Explain) -> None:
    progress = "".join(f"Step {step}/900 | Loss: 0.15 | 0.9 steps/sec\n" for step in range(50))
    wrong = []
    for signature, example in MESSAGES:
        verdict = explain_text(f"{progress}{example}\n")
        if signature.role is SignatureRole.SUMMARY:
            right = verdict.kind == "unknown"
        else:
            right = verdict.cause == signature.id and verdict.evidence[0].line == 51
            right = right and verdict.kind in (signature.role.value, "suspect", "cause")
        if not right:
            wrong.append((signature.id, verdict.kind, verdict.cause, example))
    assert wrong == []


def test_example_of_noise_is_no_evidence(explain_text: Explain) -> None:
    for signature, example in EXAMPLES:
        if signature.role is SignatureRole.NOISE:
            assert catalogue().is_noise(example)
            assert explain_text(f"{example}\n").kind == "nothing"


def test_every_message_survives_the_prefilter() -> None:
    for _, example in MESSAGES:
        assert Vocabulary().promising(squeeze(example.encode()).split(b"\n")), example


def test_ids_are_unique_and_all_fields_say_something() -> None:
    assert len({signature.id for signature in ALL}) == len(ALL)
    for signature in ALL:
        assert re.fullmatch(r"[a-z_0-9]+", signature.id)
        assert all((signature.title, signature.meaning, signature.source)), signature.id
        assert bool(signature.fix) != (signature.id == "python_exception"), (
            signature.id
        )  # "raised at" says it
        assert 0 <= signature.specificity <= 3
        seen = bool(signature.patterns or signature.events)
        assert seen != (signature.id in WITHOUT_PATTERN), signature.id


def test_references_between_signatures_lead_somewhere() -> None:
    for signature in ALL:
        for other in (*signature.explains, signature.with_oom_kills, signature.without_oom_kills):
            if other:
                assert catalogue()[other]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("connect: No route to host", "no_route"),
        ("[/x/gloo/transport/tcp/pair.cc:1] connect [10.0.0.9]:41: Connection refused", "gloo_connect"),
        ("[/x/gloo/transport/tcp/pair.cc:1] connect [127.0.1.1]:41: Connection refused", "gloo_loopback"),
        ("[/x/gloo/transport/tcp/pair.cc:210] address family mismatch", "gloo_families"),
        ("OOM when allocating tensor with shape[9,9] by allocator mklcpu", "host_memory"),
        ("NCCL WARN Duplicate GPU detected : rank 1 and rank 0", "duplicate_gpu"),
        ("RuntimeError: rollout: Server 3 failed: 502, Bad Gateway", "engine_failed"),
        ("Detected failure SLICE_FAILURE_LINK_DOWN in session 4f; Start failure handling", "tpu_halted"),
        ("(unable to lock file, errno = 11, error message = 'Resource temporarily')", "file_lock"),
        ("DistributedAdam/HorovodAllreduce_grad_3 [missing ranks: 2, 5]", "horovod_stall"),
        ("E0204 01:02:03.4 71 hook.cc:2] RAW: Remote crash gathering disabled for SIGTERM.", "terminated"),
        ("order differs across ranks: rank 2 is all-gathering 3 while rank 5 is", "collective_mismatch"),
        ("fetch of https://x.org/a.h5 failed: [Errno 101] Network is unreachable", "server_unresolved"),
        ("[enforce fail at x/pair.cc:46] op.preamble.length <= op.nbytes. 8 vs 4", "collective_mismatch"),
        ("|CCL_ERROR| x.cpp:3 f: error: ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", "device_out_of_memory"),
        ("distributed.comm.core.CommClosedError: in <TCP tcp://10.0.0.7:4>", "connection_lost"),
        ('FATAL:   "nvidia-smi": executable file not found in $PATH', "nvml"),
        ('[02:11:09] x.cc:8: Check  notnull: Environment::Get()->find("DMLC_ROLE")', "rendezvous_variables"),
        ("on gn7, is localhost: False, exception: No authentication methods available", "ssh_denied"),
        ("RESOURCE_EXHAUSTED: TPU compile error. Ran out of memory in memory space x", "jax_out_of_memory"),
        ("PermissionError: [Errno 1] Operation not permitted: '/nfs/c/x_3.lock'", "file_lock"),
        ("ConnectionError: Couldn't reach 'out/step2' on the Hub (ConnectionError)", "hub_offline"),
        ("ConnectionError: Couldn't reach https://raw.example.org/a.py", "server_unresolved"),
        ("ValueError: You need to have sentencepiece installed to convert a", "package_required"),
        ("ImportError: `roundlib` was not found on your system or is too old", "package_required"),
        ("ImportError: To decode audio, please install 'roundcodec'.", "package_required"),
        ("ImportError: roundlib version must be >= 0.9.3. Please update it.", "library_too_old"),
        ("ImportError: RoundAttention requires compute capability >= 8.0, but found (7, 5)", "gpu_too_old"),
        ("RuntimeError: CUDA out of memory encountered on a different rank", "engine_failed"),
        ("Could not load library libcudnn_a.so. Error: /l.so: undefined symbol: _Z", "cuda_library_mismatch"),
        ("Could not load library libcudnn_a.so. Error: x: cannot open shared object file", "library_missing"),
        ("Loaded runtime CuDNN library: 8.5.0 but source was compiled with: 8.6", "cuda_library_mismatch"),
    ],
)  # fmt: skip
def test_known_message_is_recognised(line: str, expected: str) -> None:
    found = catalogue().match(line)
    assert found is not None
    assert found.signature.id == expected


def test_what_numpy_never_removed_is_missing_for_another_reason() -> None:
    assert catalogue().match("AttributeError: module 'numpy' has no attribute 'ndarray'") is None


@pytest.mark.parametrize(
    "line",
    [
        "AssertionError: set NCCL_GRAPH_REGISTER=0 to avoid illegal memory access in a graph",
        "ValueError: the dataset contains non-conversational inputs",
        "pyarrow.lib.ArrowInvalid: offset overflow while concatenating arrays",
    ],
)
def test_words_of_a_cause_in_another_sense_name_none(line: str) -> None:
    assert catalogue().match(line) is None


@pytest.mark.parametrize(
    ("line", "details"),
    [
        ("could not connect to Redis at gn2:63: Connection refused", {"service": "Redis", "peer": "gn2:63"}),
        ("[Errno 111] Connect call failed ('10.0.0.4', 8265)", {"peer": "10.0.0.4", "port": "8265"}),
        ("HTTPPool(host='gn2', port=80): retries: Connection refused", {"peer": "gn2", "port": "80"}),
        ("src/tcp_client.cc:88: Connection refused", {}),
    ],
)  # fmt: skip
def test_a_refused_connection_names_who_refused(line: str, details: dict[str, str]) -> None:
    found = catalogue().match(line)
    assert found is not None
    assert (found.signature.id, dict(found.details)) == ("connection_refused", details)


@pytest.mark.parametrize(
    ("code", "expected"), [(-9, "killed"), (137, "killed"), (-7, "bus_error"), (143, "terminated")]
)
def test_exit_code_of_a_signal_means_something(code: int, expected: str) -> None:
    found = catalogue().of_exit_code(code)
    assert found is not None
    assert found.id == expected


def test_ordinary_exit_code_means_nothing_by_itself() -> None:
    assert catalogue().of_exit_code(1) is None


def test_events_of_signatures_are_the_launchers() -> None:
    known = {*EVENTS, *REFUSALS, *(family.event for family in LaunchError.__subclasses__())}
    known |= {"nodes-misplaced", "other-node-refused"}
    for signature in ALL:
        for event_id, *fields in map(str.split, signature.events):
            assert event_id in known, (signature.id, event_id)
            names = {field.partition("=")[0] for field in fields}
            assert names <= set(EVENTS[event_id].marked if fields else ()), (signature.id, event_id)
