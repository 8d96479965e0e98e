"""From a recipe to a trained run folder: recipes, the phases of the paper, the one loop, allocation."""
