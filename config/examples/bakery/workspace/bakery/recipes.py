"""Recipes: grams of each ingredient for one loaf."""


def scaled(recipe, loaves):
    """The recipe for so many loaves; the given one stays as it is."""
    for ingredient in recipe:
        recipe[ingredient] *= loaves
    return recipe
