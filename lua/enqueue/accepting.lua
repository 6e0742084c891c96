--[[ accepting: decides which jobs of a call are accepted, and makes their events, lines and values.

The steps:

1. Check the records, and read their ids, names and lanes (`check_records`).

2. Decide one record after the other (`decide_records`): the job is kept out (`kept_from`), or it waits as a plain job,
or it has ties or a delay (`accept_tied`).

3. Append the events (`emit_records`) and write (`write_records`).

A plain job that is ready at once gets no line in `state`: the first line of its value in `jobs` has the same contents
(see include/job/stored_lines). A job in a lane, or with a delay or a deadline, gets a line in `state`. So does a job
whose JSON is long: to put a line before the JSON, Lua has to copy it, at some 12 instructions a byte.

SPEC_MAX is the greatest number of bytes of a job's JSON, arguments included, that its event keeps, so that SQL can
restore the job; 0: no event keeps it.

Keys: jobs state scheduled results
Meta: sequence caps_by_task ties remembers
Args: by spec_max
Unread: state
Lists: keeping
Uses: call(now now_text) parts(list_of run_parts) meta(facts fact set_fact) digits(digits_of_next) emit(emit quoted)
    array(rest_of_array) lane_assignment(lane_for kept_out) lane_states(lane_of meet_lanes) lane_members(put)
    ids(is_id ID_LENGTH) lane_write(check_lanes write_lanes) line_tail(tail_of write_line_tails) due(earliest_due)
    wake(wake_needed) deadline(note_deadline) name_requests(want_name read_holders kept_by take_name)
    id_overdue(expire_overdue) results(keeps_results)
    idempotency(want_memory read_remembered refuse_full same_or_not memory_of take_id note_same is_taken_id
    is_id_remembered knows_ids knows_taken_ids plain_digest has_calls)
    batch(call_many read_many)
]]

local lists = {}

local SPEC_LONG = 256   -- bytes of JSON from which a line in `state` costs less than copying the JSON

local size, record, kind_of   -- number of records; the function that returns one: its id, kind, digest, lane and JSON; and the kinds
local ids, live      -- by record: its id, and whether Redis has a job of this id
local seen           -- id → the record of this call that was accepted with it; false if there is only one record
local is_tied        -- whether names or remembered ids may keep out a record's job
local may_know       -- whether Redis may know more about an id than whether its job is alive
local has_parts      -- whether parts run in the call
local next_due       -- when the first scheduled member was due before this call
local taken          -- number of accepted jobs
local events         -- the event's part about each accepted job
local dropped        -- the same for each discarded job; nil without any
local values, lines, due   -- arguments of HSET `jobs`, HSET `state` and ZADD `scheduled`
local answer         -- the places of records that are not accepted, or that replace a job, with their outcomes
local seq            -- the last place in line that was given
local since          -- the end of each line
local forms          -- kind with `is_call` → the texts around the call's digest; nil without any

local function reset()
  size, record, kind_of, ids, live, seen, next_due, taken, events, dropped = nil, nil, nil, nil, nil, nil, nil, nil, nil, nil
  values, lines, due, answer, seq, since, is_tied, may_know, has_parts, forms = nil, nil, nil, nil, nil, nil, nil, nil, nil, nil
end

--- Read the ids, the names and the lanes of the records. Returns a reply that refuses the call, or nil.
local function read_known(names, may_wait)
  if facts.ties then
    expire_overdue(ids, live)
  end
  if results then
    read_remembered(ids, live)
    local refusal = refuse_full(live)
    if refusal then
      return refusal
    end
  end
  next_due = may_wait and earliest_due(0)
  if names then
    meet_lanes(names)
  end
  may_know = may_know or (results or facts.ties) and knows_ids()
  is_tied = is_tied or may_know
  if is_tied then
    local first = {}   -- id → its first record
    read_holders(size, function(i)
      local id, place = record(i)
      first[id] = first[id] or i
      return not live[i] and not (may_know and is_id_remembered(i)) and first[id] == i and kind_of[place] or nil
    end)
  end
  return nil
end

--- Check a record whose kind has ties. Returns its digest, or a reply that refuses the call.
local function check_ties(i, kind, digest)
  if (kind.remember or kind.keep) and not results then
    return nil, {'with', 'remembers'}
  elseif kind.remember then
    digest = want_memory(i, digest, kind.unclaimed)
  end
  if not digest or kind.unique and not want_name(i, digest) then
    return nil, {'refused', 'arguments', 'digest'}
  end
  return digest, nil
end

--- Check the records, which `each_record` returns one by one, and their kinds; and read their ids, names and lanes.
--- Returns a reply that refuses the call, or nil.
---
--- Nearly all calls have only plain jobs, and many have only one job. So tables that such a call does not need are made
--- when they are needed, and keys that only other calls write are not read.
local function check_records(how_many, each_record, kinds)
  size, record, kind_of, ids, is_tied, may_know = how_many, each_record, kinds, {}, false, false
  local names, may_wait, is_long = nil, false, false
  for i = 1, size do
    local id, place, digest, lane, spec = record(i)
    local kind = kind_of[place]
    if not kind then
      return {'refused', 'arguments', 'kind'}
    elseif #id ~= ID_LENGTH and not is_id(id) then
      return {'refused', 'arguments', 'id'}
    end
    if kind.ties then
      local _, refusal = check_ties(i, kind, digest)
      if refusal then
        return refusal
      end
    end
    ids[i] = id
    if kind.may_wait then
      may_wait = true
      is_tied = is_tied or kind.has_line
      may_know = may_know or kind.unique == 'replace' or kind.remember ~= nil
    end
    if #spec > SPEC_LONG then
      is_long = true
    end
    if lane ~= '' then
      names = names or {}
      names[#names + 1] = lane
    end
  end
  live = read_many(jobs, ids)
  if names or may_wait or facts.caps_by_task or is_long then
    check_keys()
  end
  return read_known(names, may_wait)
end

--- Return why a record's job is kept out: the outcome; the job in its way (`-`: no other job) or the full scope; and
--- the cap of a full scope. Return nil if the job is accepted.
local function kept_from(i, id, kind, lane)
  local is_taken, noted = live[i], nil
  if may_know then
    is_taken, noted = is_taken_id(i, id, live[i])
  end
  if is_taken or seen and seen[id] then
    if results then
      return same_or_not(i, seen and seen[id], noted)
    end
    return 'duplicate', '-'
  end
  local on = kind.unique and kept_by(i, kind, ids)
  if on then
    if kind.remember and kind.unique ~= 'reject' then
      note_same(i, id, on, kind.remember)
    end
    return 'held', on
  elseif kind.full ~= '' then
    return kept_out(lane, kind.full)
  end
  return nil
end

--- Add a job that is kept out to the answer, and to the event if it is discarded.
local function answer_out(i, id, kind, lane, out, on, cap)
  if out == 'discard' then
    dropped = dropped or {}
    dropped[#dropped + 1] = '["' .. id .. '","' .. kind.task:sub(6) .. '",' .. quoted(lane) .. ',' .. quoted(on) .. ',' .. cap .. ']'
  end
  answer[#answer + 1] = i
  answer[#answer + 1] = out == 'discard' and 'discarded' or out == 'reject' and 'rejected' or out
  answer[#answer + 1] = on
end

--- Write the line of a job that is ready at this place in line, and put the job into its lane or, if it `joins`, into
--- its plain list. In the line, `head` follows the state, and `behind` follows the place.
local function stand_ready(id, kind, head, place, behind, lane, joins)
  local at = #lines
  if lane ~= '' then
    lines[at + 1], lines[at + 2] = id, 'ready ' .. head .. ' lane=' .. lane .. ' seq=' .. place .. behind .. since
    put(lane_of(lane), place, id)
    return
  end
  local tail = tail_of(kind.priority)
  if joins then
    tail[#tail + 1] = id
  end
  lines[at + 1], lines[at + 2] = id, 'ready ' .. head .. ' seq=' .. place .. behind .. since
end

--- Return the end of an accepted job's part of the event, after the digest. `behind` is the text after the job's JSON,
--- with its traits; nil if the job has no traits.
local function ending_of(kind, lane, spec, behind)
  local has_spec = #spec <= spec_max
  if kind.keep then
    list_of(lists, 'keeping')[1] = true
  end
  if not behind and not has_spec then
    return lane ~= '' and '","' .. lane .. '"]' or '"]'
  end
  return (lane ~= '' and '","' .. lane .. '",' or '",null,') .. (has_spec and cjson.encode(spec) or 'null') .. (behind or ']')
end

--- Accept a job with ties. Returns its digest; the texts that follow the state and the place in its line; the end of
--- its part of the event, after the digest; its due time, if its ties set one; and the place in line of the job that it
--- replaces, if it takes that place.
local function tie(i, id, kind, digest, lane, spec)
  local head, behind, said = kind.head, '', {unpack(kind.given)}   -- each trait as JSON for the event
  local name, stands, due_at, old, place, in_line
  local expires = kind.expires_at or kind.expires_in and now + kind.expires_in
  if expires then
    behind, said[TRAIT_AT.expires] = ' expires=' .. expires, expires
    note_deadline(id, expires)
  end
  if kind.remember then
    digest = plain_digest(i)
  end
  if kind.unique then
    digest, name, stands, due_at, old, place = take_name(i, id, kind, lane)
    head, said[TRAIT_AT.unique] = head .. ' unique=' .. name, quoted(name)
    if stands then
      behind, said[TRAIT_AT.stands] = ' stands=' .. stands .. behind, quoted(stands)
    end
    if old then
      answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = i, 'replaced', old
    end
  end
  if kind.cost then
    -- Behind the place in line, so that no pattern for usual lines matches, and the job is claimed at its cost.
    behind, said[TRAIT_AT.cost] = ' cost=' .. kind.cost .. behind, quoted(kind.cost)
  end
  if kind.remember then
    in_line, said[TRAIT_AT.once], said[TRAIT_AT.call] = memory_of(i, kind.remember)
    head = head .. in_line
  end
  if kind.given_line ~= '' then
    head = head .. kind.given_line
  end
  local traits = rest_of_array(said, #TRAITS)
  return digest, head, behind, ending_of(kind, lane, spec, traits ~= ']' and traits), due_at, place
end

--- Accept a job with ties or a delay.
local function accept_tied(i, id, kind, digest, lane, spec)
  local due_at, head, behind = kind.due_ms or now + kind.delay_ms, kind.head, ''
  local ending, due_after, old_place
  if kind.ties then
    digest, head, behind, ending, due_after, old_place = tie(i, id, kind, digest, lane, spec)
    due_at = due_after or due_at
  else
    ending = ending_of(kind, lane, spec, kind.behind)
  end
  if due_at <= now then
    if not old_place then
      seq = seq + 1
    end
    local place = old_place or digits_of_next(seq)
    events[taken] = '["' .. id .. '",' .. place .. ',null,' .. kind.detail .. digest .. ending
    stand_ready(id, kind, head, place, behind, lane, not old_place)
    return
  end
  due = due or {}
  due[#due + 1], due[#due + 2] = due_at, 'job|' .. id
  local at = #lines
  lines[at + 1], lines[at + 2] = id, 'scheduled ' .. head .. (lane ~= '' and ' lane=' .. lane or '') .. behind .. ' due=' .. due_at .. since
  events[taken] = '["' .. id .. '",null,' .. due_at .. ',' .. kind.detail .. digest .. ending
  if not next_due or due_at < next_due then
    wake_needed()
  end
end

--- Return the texts around the digest of a call: in the line of a job of this kind, and at the end of its event's part.
local function form_of(kind)
  local once, said = now + kind.remember, {unpack(kind.given)}
  said[TRAIT_AT.once], said[TRAIT_AT.call] = once, '"\n"'
  local before, behind = rest_of_array(said, #TRAITS):match('^(.*)\n(.*)$')
  if kind.keep then
    list_of(lists, 'keeping')[1] = true
  end
  local form = {
    tail = tail_of(kind.priority), before = before, behind = behind,
    line_before = 'ready ' .. kind.head .. ' once=' .. once .. ' call=', line_behind = kind.given_line .. ' seq=',
  }
  forms = forms or {}
  forms[kind] = form
  return form
end

--- Accept a job as `accept_tied` does: it has no lane, its kind has `is_call`, and its calls are compared.
local function accept_call(id, kind, digest, call_digest, spec)
  local form = forms and forms[kind] or form_of(kind)
  seq = seq + 1
  local place, said = digits_of_next(seq), #spec <= spec_max and cjson.encode(spec) or 'null'
  events[taken] = '["' .. id .. '",' .. place .. ',null,' .. kind.detail .. digest .. '",null,' .. said .. form.before .. call_digest .. form.behind
  local at, tail = #lines, form.tail
  lines[at + 1], lines[at + 2] = id, form.line_before .. call_digest .. form.line_behind .. place .. since
  tail[#tail + 1] = id
end

--- Decide about all records. Returns the answer.
local function decide_records()
  local caps_by_task = facts.caps_by_task
  seq, since, taken = fact('sequence'), ' since=' .. now_text, 0
  events, values, lines, answer, seen = {}, {}, {}, {}, size > 1 and {}
  local since_line = since .. '\n'
  local tail, tail_kind = nil, nil   -- the plain list that the last plain job joined, and the kind of that job
  for i = 1, size do
    local id, place, digest, lane, spec = record(i)
    local kind = kind_of[place]
    if caps_by_task and lane == '' then
      lane = lane_for(kind)
    end
    local out, on, cap
    if live[i] or kind.has_rules or is_tied and knows_taken_ids() or seen and seen[id] then
      out, on, cap = kept_from(i, id, kind, lane)
    end
    if out then
      answer_out(i, id, kind, lane, out, on, cap)
    else
      if seen then
        seen[id] = i
      end
      taken = taken + 1
      if results then
        take_id(i, id)
      end
      local plain, call_digest
      if kind.is_call and lane == '' then
        plain, call_digest = plain_digest(i)
      end
      if call_digest and call_digest ~= '' then
        accept_call(id, kind, plain, call_digest, spec)
      elseif kind.has_line or kind.may_wait and (kind.due_ms or now + kind.delay_ms) > now then
        accept_tied(i, id, kind, digest, lane, spec)
      else
        seq = seq + 1
        local at, ending = digits_of_next(seq), '"]'
        if kind.behind or #spec <= spec_max then
          ending = ending_of(kind, lane, spec, kind.behind)
        elseif lane ~= '' then
          ending = '","' .. lane .. '"]'
        end
        events[taken] = '["' .. id .. '",' .. at .. ',null,' .. kind.detail .. digest .. ending
        if lane ~= '' or #spec > SPEC_LONG then
          stand_ready(id, kind, kind.head, at, '', lane, true)
        else
          if tail_kind ~= kind then
            tail, tail_kind = tail_of(kind.priority), kind
          end
          local last = #tail
          tail[last + 1] = id
          spec = kind.head .. ' seq=' .. at .. since_line .. spec
        end
      end
      values[2 * taken - 1], values[2 * taken] = id, spec
    end
  end
  check_lanes()
  has_parts = run_parts('check')
  return answer
end

--- Append the events. The order matters: an id that another job gives up in this call may then be discarded, and an id
--- that was discarded may come again and be accepted. `reason` is the reason of the call; nil: none was given.
local function emit_records(reason)
  if has_parts then
    run_parts('append', by)
  end
  if dropped then
    emit('discarded', now_text, by, dropped, reason)
  end
  emit('enqueued', now_text, by, events, reason)
end

--- Note in `meta` that the queue has jobs with ties from now on.
local function switch_on()
  if not facts.ties and (taken > 0 or keeps_results()) then
    set_fact('ties', 1)
  end
  if not facts.remembers and (keeps_results() or lists.keeping or taken > 0 and has_calls()) then
    set_fact('remembers', 1)
  end
end

--- Write the accepted jobs.
local function write_records()
  if has_parts then
    run_parts('write')
    switch_on()
  end
  call_many('HSET', jobs, values)
  call_many('HSET', state, lines)
  write_line_tails()
  if due then
    call_many('ZADD', scheduled, due)
  end
  write_lanes()
  if seq ~= fact('sequence') then
    set_fact('sequence', seq)
  end
end
