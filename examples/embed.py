"""The log inside a server: record a turn, observe it, and read it back."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from eventlog import Event, EventLog, HookContext, Runtime, define_hook
from eventlog.events import MessageReceived


async def greet(event: Event[MessageReceived], ctx: HookContext) -> None:
    print(f'{ctx.session.id} received "{event.data.text}"')


async def serve(path: Path) -> None:
    async with EventLog(path) as log, Runtime(log) as runtime:
        runtime.add_hook("greet", define_hook(events={"message.received": greet}))
        session = await log.start_session("s1", channel="cli")
        await session.append("message.received", {"text": "Is it high tide?"}, turn_id="t1")
        await session.append("turn.completed", {"result": "At 06:12."}, turn_id="t1")
        await runtime.settled(timeout_s=10)
        async for event in session.read():
            print(event.to_json().decode())


with TemporaryDirectory() as folder:
    asyncio.run(serve(Path(folder) / "agent.db"))
