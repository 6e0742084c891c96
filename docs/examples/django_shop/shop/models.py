from django.db import models


class Order(models.Model):
    to = models.CharField(max_length=254)
    is_counted = models.BooleanField(default=False)
