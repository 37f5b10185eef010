from .job_client import JobClient as JobClient
from .job_reader import JobReader as JobReader
