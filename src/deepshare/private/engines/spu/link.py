"""The connection of the two parties."""

from typing import Any

from spu import libspu

from deepshare.errors import EngineError
from deepshare.private.engines.spu.meter import LogMeter
from deepshare.private.runtime.engine import Role, Task, Tls

RANKS: dict[Role, int] = {"server": 0, "client": 1}

CONNECT_SECONDS = 60
# How long a party waits for a message: on CHEETAH the other may compute for minutes before it answers.
MESSAGE_SECONDS = 1200
# One certificate between a party's own and the authority.
_DEPTH = 2


def connect(task: Task, meter: LogMeter) -> Any:
    """Find the other party.

    Raises:
        EngineError: It is not there, or its certificate is not of our authority.
    """
    try:
        return libspu.link.create_brpc(_description(task), RANKS[task.role])
    except RuntimeError as error:
        raise _reason(task, meter, str(error)) from error


def _reason(task: Task, meter: LogMeter, message: str) -> EngineError:
    other = next(role for role in RANKS if role != task.role)
    there = f"the {other} at {task.addresses[other]}"
    if "connect to mesh" not in message:
        return EngineError(f"the {task.role} cannot listen at {task.addresses[task.role]}: is the port taken?")
    if "SSL" in meter.complaints():
        return EngineError(f"{there} and the {task.role} refuse each other: give both certificates of one authority")
    return EngineError(f"{there} was not there within {CONNECT_SECONDS} s: start it, and let its port through")


def _description(task: Task) -> Any:
    desc = libspu.link.Desc()
    desc.id = "deepshare"
    for role in RANKS:
        desc.add_party(role, task.addresses[role])
    # One try takes a bit more than the interval.
    desc.connect_retry_times = 3 * CONNECT_SECONDS // 2
    desc.connect_retry_interval_ms = 500
    desc.retry_opts.max_retry = 1
    desc.retry_opts.retry_interval_ms = 200
    desc.recv_timeout_ms = MESSAGE_SECONDS * 1000
    if task.tls is not None:
        desc.enable_ssl = True
        for options in (desc.client_ssl_opts, desc.server_ssl_opts):
            _trust(options, task.tls)
    return desc


def _trust(options: Any, tls: Tls) -> None:
    options.cert.certificate_path = str(tls.certificate)
    options.cert.private_key_path = str(tls.key)
    options.verify.ca_file_path = str(tls.authority)
    options.verify.verify_depth = _DEPTH
