--[[ call: begins and ends a mutating call, so that a call that is sent twice is carried out once.

A client numbers the calls of a slot 1, 2, 3… and has one of them on its way. The slot keeps the last number and its
answer. A call with a greater number is new, one with the same number gets the same answer again, one with a lower
number came too late. (The client table of viewstamped replication; Kafka's idempotent producer and RIFL use the same
idea.)

The field SLOT of `slots` has the number, the time until which the slot is remembered, and `+` if the answer is more
than `ok`. Such an answer is in the field SLOT|a, which only a repetition reads: the answer to a claim of a hundred jobs
is long.

Keys: slots expiring
Meta: layout epoch replid
Args: slot number number_text
Unread: expiring
Uses: clock(clock_ms) meta(facts write_facts) epoch(know_facts) digits(digits) wake(push_token)
]]

local RENEW_MS = SLOT_LIFE_MS - SLOT_LIFE_MS / 6   -- a slot is remembered for at least this time

local now             -- Unix time of the call in ms
local now_text        -- the same as text
local slot_deadline   -- time until which the slot is remembered
local moves_deadline  -- whether the slot must be remembered for longer than that

local function reset()
  now, now_text, slot_deadline, moves_deadline = nil, nil, '0', true
end

--- Return the reply to a call that was carried out. (`unpack` cannot take as many words as a call may have.)
local function ok(words)
  local reply = {'ok'}
  for i = 1, #words do
    reply[i + 1] = words[i]
  end
  return reply
end

--- Return the field of `slots` that has the answer of a slot.
local function answer_field(name)
  return name .. SLOT_ANSWER
end

--- Return the words of a text.
local function words_of(text)
  local words = {}
  for word in text:gmatch('%S+') do
    words[#words + 1] = word
  end
  return words
end

--- Begin the call. Returns a reply that ends the script at once, or nil. `replay(answer)` may make the reply to a
--- repeated call from the answer in the slot. A call that lacks the keys of one of the queue's facts is refused.
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
    -- The time is moved only now and then, so that most calls need not write it.
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

--- End the call: write its number, and the answer as text, into the slot. The slot is remembered for 50 to 60 minutes
--- after the call, or, if a relay named it, for 30 days from its first call.
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

--- End the call, and return the reply. Words must not be empty or contain spaces, since `open_call` splits the answer
--- at spaces.
local function close_call(words)
  local reply = ok(words)
  keep_answer(table.concat(words, ' '))
  return reply
end
