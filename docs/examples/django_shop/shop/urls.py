from django.urls import path

from shop.views import get_mail, post_order

urlpatterns = [path("orders", post_order), path("mails/<str:result_id>", get_mail)]
