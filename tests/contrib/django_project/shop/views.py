from django.db import transaction
from django.http import HttpRequest, JsonResponse

from shop.models import Order
from shop.tasks import thank


def post_order(request: HttpRequest) -> JsonResponse:
    order = Order.objects.create(to=request.POST["to"])
    result = thank.enqueue(order.pk)
    if "@" not in order.to:
        raise ValueError(result.id)
    return JsonResponse({"result": result.id})


@transaction.non_atomic_requests
async def post_async(request: HttpRequest) -> JsonResponse:
    result = await thank.aenqueue(int(request.POST["order"]), words="at once")
    again = await thank.aget_result(result.id)
    return JsonResponse({"result": result.id, "status": again.status})
