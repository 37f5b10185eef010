import unittest

from bakery.recipes import scaled


class Recipes(unittest.TestCase):
    def test_a_scaled_recipe_leaves_the_given_one_alone(self):
        rye = {"flour": 500, "water": 350}
        self.assertEqual(scaled(rye, 3), {"flour": 1500, "water": 1050})
        self.assertEqual(rye, {"flour": 500, "water": 350})
