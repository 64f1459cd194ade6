"""Reads stdin line by line, on the loop and without a thread, so that a signal ends the wait for one."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator
from typing import TextIO

from eventlog.errors import LimitExceeded
from eventlog.events import MAX_EVENT_BYTES

CHUNK_BYTES = 65_536


async def lines(stream: TextIO) -> AsyncIterator[str]:
    """The lines of a stream, without their ends, until it ends; no more is read than is asked for.

    Raises LimitExceeded for a line that no event could hold.
    """
    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:  # it is no file, so all of it is there
        for line in stream:
            yield line.removesuffix("\n")
        return
    read = b""
    while True:
        line_bytes, end, rest = read.partition(b"\n")
        if end:
            read = rest
            yield line_bytes.decode(errors="replace")
        elif len(read) > MAX_EVENT_BYTES:
            raise LimitExceeded("bytes of a line", MAX_EVENT_BYTES, len(read))
        else:
            await _readable(descriptor)
            chunk = os.read(descriptor, CHUNK_BYTES)
            if not chunk:
                break
            read += chunk
    if read:
        yield read.decode(errors="replace")


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    try:
        loop.add_reader(descriptor, came.set)
    except PermissionError:  # a file on a disk lets nobody wait
        return
    try:
        await came.wait()
    finally:
        loop.remove_reader(descriptor)
