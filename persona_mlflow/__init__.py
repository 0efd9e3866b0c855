"""persona-mlflow: how far can an LLM's persona-driven behaviour be trusted?"""

__version__ = "0.1.0"
