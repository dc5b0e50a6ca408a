# The README's two commands in a container:
#     docker build -t forktask .
#     docker run --rm -v "$PWD/comparison:/forktask/comparison" forktask
# A container measures like its host where it may use all of its CPUs; `forktask info` says what it sees.
FROM python:3.12.11-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends g++ gcc git libc6-dev make && rm -rf /var/lib/apt/lists/*
WORKDIR /forktask
COPY . .
ENV PIP_CONSTRAINT=/forktask/constraints.txt
RUN make install install-tests
CMD ["make", "compare", "test"]
