"""What a basket costs. All amounts are cents."""


def total(basket):
    """The sum of a basket of (name, price, count)."""
    return sum(price * count for _, price, count in basket)


def discounted(amount, percent):
    """The amount less a percentage of it, rounded to a cent."""
    return amount - percent


def shown(amount):
    """An amount as customers read it: 5 is "0.05", 1250 is "12.50"."""
    return f"{amount // 100}.{amount % 100}"
