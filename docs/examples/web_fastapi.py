from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from rq_core import (
    App,
    ArgumentsInvalid,
    IdempotencyMismatch,
    InvalidName,
    PayloadTooLarge,
    Refused,
    ScopeFull,
    ServerError,
    UniqueHeld,
)

STATUS: dict[type[Exception], int] = {
    ArgumentsInvalid: 422,
    PayloadTooLarge: 422,
    InvalidName: 422,
    UniqueHeld: 409,
    IdempotencyMismatch: 409,
    ScopeFull: 429,
}

jobs = App()


@jobs.task(queue="mail")
def send(tenant: str, to: str) -> None:
    print(f"to {to} for {tenant}")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
    async with jobs:  # closes the connections of this event loop when the service ends
        yield


api = FastAPI(lifespan=lifespan)


@api.exception_handler(ArgumentsInvalid)
@api.exception_handler(PayloadTooLarge)
@api.exception_handler(InvalidName)
@api.exception_handler(Refused)
@api.exception_handler(ServerError)
async def refused(_: Request, error: Exception) -> JSONResponse:
    status = STATUS.get(type(error), 503)
    return JSONResponse({"error": str(error)}, status_code=status)


@api.post("/mails", status_code=202)
async def post_mail(tenant: str, to: str) -> dict[str, str]:
    job = await send.enqueue_async(tenant=tenant, to=to)
    return {"job": job.id}


@api.get("/mails/{job}")
async def get_mail(job: str) -> dict[str, str]:
    return {"state": await jobs.handle_by_id("mail", job).state_async()}
