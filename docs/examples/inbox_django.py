from django.db import models, transaction
from django.http import HttpRequest, JsonResponse

from rq_core import App

jobs = App()  # the variable RQ_CORE_INBOX_URL names the database, so that states say `inbox`


class Order(models.Model):
    to = models.CharField(max_length=254)

    class Meta:
        app_label = "shop"


@jobs.task(queue="mail")
def send(order_id: int) -> None:
    order = Order.objects.get(pk=order_id)  # it is committed: the job was, too
    print(f"to {order.to}: thank you for order {order.pk}")


def post_order(request: HttpRequest) -> JsonResponse:
    with transaction.atomic():
        order = Order.objects.create(to=request.POST["to"])
        job = send.within("default").enqueue(order_id=order.pk)  # "default" is the alias
        if "@" not in order.to:
            transaction.set_rollback(True)  # rolls both back: the order, and the job
            return JsonResponse({"error": "no address"}, status=422)
    return JsonResponse({"order": order.pk, "job": job.id}, status=202)


def get_mail(request: HttpRequest, job: str) -> JsonResponse:
    return JsonResponse({"state": jobs.handle_by_id("mail", job).state()})
