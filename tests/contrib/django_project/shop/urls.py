from django.urls import path

from shop.views import post_async, post_order

urlpatterns = [path("orders", post_order), path("thanks", post_async)]
