"""Mirrors the transcript: one file an event, without the deltas, whose text `*.completed` carries in full.

The mirror holds reasoning and the arguments and outputs of tools, so choose its place accordingly.
"""

from __future__ import annotations

from eventlog import Event, HookContext, define_hook

from .._noted import noted  # noqa: TID252 (an agent folder can stand anywhere, so it knows its own files by place)


@noted("mirror")
async def mirror(event: Event[object], ctx: HookContext) -> None:
    """Write one event; the session's own files keep transcripts apart."""
    if event.type.endswith(".appended"):
        return
    await ctx.host.files.write(f"transcript/{event.index:06}.json", event.to_json())


hook = define_hook(events={"*": mirror})
