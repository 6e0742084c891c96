from django.db import transaction
from django.http import HttpRequest, JsonResponse

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


def post_mail(request: HttpRequest) -> JsonResponse:
    tenant, to = request.POST["tenant"], request.POST["to"]
    made = []
    try:
        with transaction.atomic():
            # … rows that the handler will read are written here …
            transaction.on_commit(lambda: made.append(send.enqueue(tenant=tenant, to=to)))
    except (ArgumentsInvalid, PayloadTooLarge, InvalidName, Refused, ServerError) as error:
        return JsonResponse({"error": str(error)}, status=STATUS.get(type(error), 503))
    return JsonResponse({"job": made[0].id}, status=202)
