from django.db import transaction
from django.http import HttpRequest, JsonResponse

from shop.models import Order
from shop.tasks import count, send


def post_order(request: HttpRequest) -> JsonResponse:  # in a transaction, by ATOMIC_REQUESTS
    order = Order.objects.create(to=request.POST["to"])
    result = send.enqueue(order.pk)
    count.within("default").enqueue(order.pk)  # "default" is the alias of the database
    if "@" not in order.to:
        transaction.set_rollback(True)  # no order, and no task
        return JsonResponse({"error": "no address"}, status=422)
    return JsonResponse({"order": order.pk, "mail": result.id}, status=202)


def get_mail(request: HttpRequest, result_id: str) -> JsonResponse:
    result = send.get_result(result_id)
    value = result.return_value if result.status == "SUCCESSFUL" else None
    return JsonResponse({"status": result.status, "value": value})
