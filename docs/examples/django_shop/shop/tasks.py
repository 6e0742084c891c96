from rq_core.contrib.django import app
from shop.models import Order

try:
    from django.tasks import task  # Django 6.0 and later
except ModuleNotFoundError:
    from django_tasks import task  # Django 5.2


@task(queue_name="mail")
def send(order_id: int) -> str:
    order = Order.objects.get(pk=order_id)  # it is committed: the task was, too
    return f"to {order.to}: thank you for order {order.pk}"


@app.task(queue="statistics")
def count(order_id: int) -> None:  # a task of rq-core's own: it may have caps, a unique name, …
    Order.objects.filter(pk=order_id).update(is_counted=True)
