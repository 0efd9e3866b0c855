.PHONY: test fast lint check

test:
	pytest

fast:
	pytest -m "not slow"

lint:
	ruff check . && ruff format --check . && mypy

check:
	bash .ci/run
