import unittest

from bakery.opening import is_open


class Opening(unittest.TestCase):
    def test_the_door_opens_at_seven_and_closes_at_eighteen(self):
        hours = [hour for hour in range(24) if is_open("Friday", hour)]
        self.assertEqual(hours, list(range(7, 18)))

    def test_it_is_closed_on_sundays(self):
        self.assertFalse(is_open("Sunday", 10))
