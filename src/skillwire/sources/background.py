"""Work that runs beside an `async with` block, and ends with it."""

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio


@asynccontextmanager
async def running(*tasks: Callable[[], Coroutine[Any, Any, object]]) -> AsyncGenerator[None]:
    """Run `tasks` while the block lasts, and cancel them when it ends.

    An exception of the block comes out as it went in: a task group alone
    would wrap it, and no caller expects that of a source.
    """
    caught: BaseException | None = None
    async with anyio.create_task_group() as group:
        for task in tasks:
            group.start_soon(task)
        try:
            yield
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            caught = error
        finally:
            group.cancel_scope.cancel()
    if caught is not None:
        raise caught
