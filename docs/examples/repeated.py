from rq_core import App, IdempotencyMismatch

app = App()


@app.task(queue="mail")
def confirm(order: int, to: str) -> None:
    print(f"order {order}: a mail to {to}")


def order_arrives(order: int, to: str) -> str:
    """Enqueue the mail about an order. The shop calls this function again if it got no answer."""
    handle = confirm.with_options(idempotency_key=f"order-{order}").enqueue(order, to)
    return "known" if handle.duplicate else "accepted"


def order_arrives_with_another_address(order: int) -> str:
    try:
        return order_arrives(order, "somewhere@else.example")
    except IdempotencyMismatch:
        return "another call with this key was accepted before"
