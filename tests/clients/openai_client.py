"""The real openai client against a gateway: replies are normal, and carry the metrics object.

usage: openai_client.py BASE_URL MODEL
Prints one JSON line for the test that started it; any failed expectation raises.
"""

import json
import sys

from openai import BadRequestError, NotFoundError, OpenAI

KEYS = ["time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second"]


def check_metrics(metrics):
    assert list(metrics) == KEYS, metrics
    assert all(value is not None and value >= 0 for value in metrics.values()), metrics


def main():
    base_url, model = sys.argv[1:]
    client = OpenAI(base_url=base_url, api_key="none", max_retries=0)
    question = [{"role": "user", "content": "What is the capital of France?"}]

    reply = client.chat.completions.create(model=model, messages=question, temperature=0, max_tokens=32)
    assert "Paris" in reply.choices[0].message.content, reply
    assert reply.choices[0].finish_reason == "stop", reply
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens, reply
    check_metrics(reply.model_extra["metrics"])

    text, usage, metrics, chunks = "", None, None, 0
    stream = client.chat.completions.create(
        model=model, messages=question, temperature=0, max_tokens=32, stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        chunks += 1
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
            assert "metrics" not in (chunk.model_extra or {}), chunk
        if chunk.usage:
            usage, metrics = chunk.usage, chunk.model_extra["metrics"]
    assert text == reply.choices[0].message.content, (text, reply)
    assert usage.completion_tokens == reply.usage.completion_tokens, (usage, reply)
    check_metrics(metrics)

    # Unasked for, usage stays out of the stream, though the gateway asks the engine for it.
    plain = list(client.chat.completions.create(model=model, messages=question, max_tokens=4, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in plain), plain

    completion = client.completions.create(model=model, prompt="The capital of France is", max_tokens=8, temperature=0)
    assert completion.usage.completion_tokens >= 1, completion
    check_metrics(completion.model_extra["metrics"])

    several = client.chat.completions.create(model=model, messages=question, n=2, max_tokens=4)
    assert len(several.choices) == 2 and "metrics" not in (several.model_extra or {}), several

    try:
        client.chat.completions.create(model="no-such-model", messages=question)
        raise AssertionError("an unknown model was answered")
    except NotFoundError as error:
        assert "no-such-model" in str(error), error
    try:
        client.chat.completions.create(model=model, messages=question, temperature=-1)
        raise AssertionError("a negative temperature was taken")
    except BadRequestError as error:
        assert "temperature" in str(error), error

    print(json.dumps({"text": text, "chunks": chunks, "models": [m.id for m in client.models.list()]}))


if __name__ == "__main__":
    main()
