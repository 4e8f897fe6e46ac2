"""The real openai and anthropic clients, unaware of the gateway before them, in every wire format.

usage: formats.py BASE_URL
The models are played by the test that started this: NAME-whole and NAME-stream for each format, with the answer
"Hello world" behind the reasoning "Hm." where the format has room for it. Any failed expectation raises.
"""

import json
import sys

from anthropic import Anthropic
from openai import OpenAI

ASKED = [{"role": "user", "content": "Say hello."}]


def chat(client):
    reply = client.chat.completions.create(model="chat-whole", messages=ASKED)
    assert reply.choices[0].message.content == "Hello world", reply
    call = reply.choices[0].message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("wave", {"hand": "left"}), reply
    text, name, arguments = "", "", ""
    for chunk in client.chat.completions.create(model="chat-stream", messages=ASKED, stream=True):
        assert chunk.usage is None and chunk.choices, chunk  # the gateway's own question stays hidden
        delta = chunk.choices[0].delta
        text += delta.content or ""
        for call in delta.tool_calls or []:
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert (text, name, json.loads(arguments)) == ("Hello world", "wave", {"hand": "left"}), (text, arguments)


def completions(client):
    reply = client.completions.create(model="completions-whole", prompt="Hello")
    assert reply.choices[0].text == " world", reply
    stream = client.completions.create(
        model="completions-stream", prompt="Hello", stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == " world", chunks
    assert chunks[-1].usage.completion_tokens == 2, chunks[-1]


def responses(client):
    reply = client.responses.create(model="responses-whole", input="Say hello.")
    assert reply.output_text == "Hello world", reply
    assert reply.model_extra["metrics"] is not None, reply
    kinds, ended = [], None
    for event in client.responses.create(model="responses-stream", input="Say hello.", stream=True):
        kinds.append(event.type)
        ended = event
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    assert ended.response.output_text == "Hello world", ended
    assert ended.response.usage.output_tokens == 5, ended


def messages(client):
    reply = client.messages.create(model="messages-whole", messages=ASKED, max_tokens=16)
    assert [block.type for block in reply.content] == ["thinking", "text"], reply
    assert reply.content[1].text == "Hello world", reply
    with client.messages.stream(model="messages-stream", messages=ASKED, max_tokens=16) as stream:
        text = "".join(stream.text_stream)
        ended = stream.get_final_message()
    assert text == "Hello world" == ended.content[1].text, ended
    assert (ended.stop_reason, ended.usage.output_tokens) == ("end_turn", 5), ended


def main():
    (base_url,) = sys.argv[1:]
    client = OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0)
    chat(client)
    completions(client)
    responses(client)
    messages(Anthropic(base_url=base_url, api_key="none", max_retries=0))


if __name__ == "__main__":
    main()
