--[[ call: how a mutating call begins and ends, so that sending it twice is the same as once.

A client numbers the calls of a slot 1, 2, 3… and has one of them in flight. The slot keeps the last number
and its answer: a greater number is a new call, an equal one is answered again, a lower one came too late.
(The client table of viewstamped replication; Kafka's idempotent producer and RIFL are the same idea.)

In `slots`, SLOT is the number, until when the slot is remembered, and `+` if there is more to the answer than `ok`; that
is in SLOT|a, which only a repetition reads: a claim of a hundred jobs has a long answer.

Keys: slots expiring
Meta: layout epoch replid
Args: slot number number_text
Unread: expiring
Uses: clock(clock_ms) meta(facts write_facts) epoch(know_facts) digits(digits) wake(push_token)
]]

local RENEW_MS = SLOT_LIFE_MS - SLOT_LIFE_MS / 6   -- a slot is remembered for so long at least

local now             -- Unix time of the call in ms
local now_text        -- the same as text
local slot_deadline   -- until when the slot is remembered
local moves_deadline  -- whether the slot must be remembered for longer

local function reset()
  now, now_text, slot_deadline, moves_deadline = nil, nil, '0', true
end

--- The reply to a call that was carried out. (`unpack` cannot take a whole batch.)
local function ok(words)
  local reply = {'ok'}
  for i = 1, #words do
    reply[i + 1] = words[i]
  end
  return reply
end

--- The field of `slots` that has the answer of a slot.
local function answer_field(name)
  return name .. SLOT_ANSWER
end

--- The words of a text.
local function words_of(text)
  local words = {}
  for word in text:gmatch('%S+') do
    words[#words + 1] = word
  end
  return words
end

--- Begin. Returns a reply that ends the script at once, or nil. `replay(answer)` may rebuild the reply from an answer. A call that
--- lacks the keys of a fact of the queue is refused.
local function open_call(replay)
  now, now_text = clock_ms()
  if not know_facts(now) then
    return {'epoch'}
  elseif facts.layout ~= LAYOUT then
    return {'refused', 'layout', facts.layout}
  end
  local held = redis.call('HGET', slots, slot)
  if not held then
    check_keys()
    return refuse_keys()
  end
  local last, deadline, more = held:match('^(%d+) (%d+) ?(%+?)')
  last, slot_deadline = tonumber(last), deadline
  if number > last then
    -- The deadline is moved only now and then, to spare most calls a write.
    moves_deadline = tonumber(deadline) < now + RENEW_MS
    if moves_deadline then
      check_keys()
    end
    return refuse_keys()
  elseif number < last then
    return {'refused', 'stale_call'}
  end
  local answer = more == '+' and redis.call('HGET', slots, answer_field(slot)) or ''
  if replay then
    return replay(answer)
  end
  return ok(words_of(answer))
end

--- End: keep the answer, a text, in the slot, and use it up. The slot lives on for 50 to 60 minutes; one that a relay named, for
--- 30 days from its first call.
local function keep_answer(answer)
  if moves_deadline then
    local life = slot:sub(1, #INBOX_SLOT) == INBOX_SLOT and INBOX_SLOT_LIFE_MS or SLOT_LIFE_MS
    slot_deadline = digits(now + life)
    redis.call('ZADD', expiring, slot_deadline, 'slot|' .. slot)
  end
  local said = number_text .. ' ' .. slot_deadline
  if answer == '' then
    redis.call('HSET', slots, slot, said)
  else
    redis.call('HSET', slots, slot, said .. ' +', answer_field(slot), answer)
  end
  write_facts()
  push_token()
end

--- End, and return the answer. Its words are not empty and have no spaces, so that `open_call` finds them again.
local function close_call(words)
  local reply = ok(words)
  keep_answer(table.concat(words, ' '))
  return reply
end
