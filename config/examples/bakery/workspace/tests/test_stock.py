import unittest

from bakery.stock import SoldOut, take


class Stock(unittest.TestCase):
    def test_taking_leaves_the_rest(self):
        shelf = {"roll": 10}
        take(shelf, "roll", 4)
        self.assertEqual(shelf, {"roll": 6})

    def test_the_shelf_stays_as_it_is_when_there_is_not_enough(self):
        shelf = {"roll": 3}
        with self.assertRaises(SoldOut):
            take(shelf, "roll", 4)
        self.assertEqual(shelf, {"roll": 3})
