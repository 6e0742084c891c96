from flask import Flask, request

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
web = Flask(__name__)


@jobs.task(queue="mail")
def send(tenant: str, to: str) -> None:
    print(f"to {to} for {tenant}")


@web.errorhandler(ArgumentsInvalid)
@web.errorhandler(PayloadTooLarge)
@web.errorhandler(InvalidName)
@web.errorhandler(Refused)
@web.errorhandler(ServerError)
def refused(error: Exception) -> tuple[dict[str, str], int]:
    return {"error": str(error)}, STATUS.get(type(error), 503)


@web.post("/mails")
def post_mail() -> tuple[dict[str, str], int]:
    job = send.enqueue(tenant=request.form["tenant"], to=request.form["to"])
    return {"job": job.id}, 202
