"""``python -m persona_mlflow``: the command line."""

from persona_mlflow.cli import main

if __name__ == "__main__":
    main()
