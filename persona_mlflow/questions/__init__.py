"""Questions: where they come from, and what an experiment asks (P1 Appendix D.1).

`load_questions` turns a name, a path or an experiment's ``questions:`` mapping into a `QuestionSet`, whose
`DataReport` says what is in it, what is missing and what is odd. Nothing is dropped unless asked.
"""

from persona_mlflow.questions.base import LETTERS, OTHER, Question, SourceRow, content_id
from persona_mlflow.questions.categories import SOURCES, Category, CategoryTable, load_categories
from persona_mlflow.questions.load import DROPS, load_questions
from persona_mlflow.questions.questionset import QuestionSet
from persona_mlflow.questions.report import DataReport, EqualOptions, Shortfall
from persona_mlflow.questions.resolve import NAMES
from persona_mlflow.questions.table import ANSWER_FORMS, TableColumns

__all__ = [
    "ANSWER_FORMS",
    "DROPS",
    "LETTERS",
    "NAMES",
    "OTHER",
    "SOURCES",
    "Category",
    "CategoryTable",
    "DataReport",
    "EqualOptions",
    "Question",
    "QuestionSet",
    "Shortfall",
    "SourceRow",
    "TableColumns",
    "content_id",
    "load_categories",
    "load_questions",
]
