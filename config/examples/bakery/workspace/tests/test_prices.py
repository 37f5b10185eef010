import unittest

from bakery.prices import discounted, shown, total


class Prices(unittest.TestCase):
    def test_a_basket_costs_the_sum_of_its_parts(self):
        self.assertEqual(total([("rye loaf", 420, 2), ("roll", 45, 6)]), 1110)

    def test_a_discount_is_a_percentage(self):
        self.assertEqual(discounted(1200, 10), 1080)

    def test_cents_are_shown_with_two_digits(self):
        self.assertEqual(shown(1205), "12.05")
