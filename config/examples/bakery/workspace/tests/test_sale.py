import unittest

from bakery.prices import total
from bakery.stock import take


class Sale(unittest.TestCase):
    def test_what_is_sold_leaves_the_shelf_and_costs_its_price(self):
        shelf = {"roll": 10, "rye loaf": 3}
        take(shelf, "roll", 6)
        take(shelf, "rye loaf", 2)
        self.assertEqual(shelf, {"roll": 4, "rye loaf": 1})
        self.assertEqual(total([("rye loaf", 420, 2), ("roll", 45, 6)]), 1110)
