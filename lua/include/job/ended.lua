--[[ ended: jobs that end: they leave Redis, or they are dead. No other file adds to the lists of either, so what has to happen
whenever a job ends stands here, and no way of ending can forget it.

The fact `ties` says that the queue has had jobs with more to end than themselves. Other queues do not look for it. The lists are
`seldom` ones: `gone` and `died`; `untied`, members of `expiring` that end with their jobs; `named` and `named_ids`, fields of `slots`
for the names of jobs that end, and the ids of these; and `freed`, those of these fields whose names the jobs hold.

Keys: state jobs expiring slots
Meta: ties remembers audit
Later: dead_retention_ms backlog_bytes backlog_max_bytes
Unread: expiring
Lists: died freed gone named named_ids untied
Uses: call(now_text) seldom(seldom seldom_list) meta(facts fact read_now) batch(call_many read_many) names(name_field)
    remembered(memory told_in) telling(tell_ended)
]]

local FULL = 43       -- `+`, before the digest of a value that is to stand in the log
local NO_VALUE = 33   -- `!`, before the reason why there is no value; JSON does not begin so
local DIGEST_LENGTH = 32
local BEHIND_ALIKE = '^%d+ since=%d+$'   -- how a line ends behind ` seq=` if it has no deadline and no reason

--- What ends with a job, if anything does. `job` is its record, or its line.
local function untie(id, job)
  local has_deadline, name
  if type(job) == 'string' then
    has_deadline, name = job:find(' expires=', 1, true), told_in(job, ' unique=')
  else
    has_deadline, name = job.expires, job.unique
  end
  if name then
    local named, ids = seldom_list('named'), seldom_list('named_ids')
    named[#named + 1], ids[#ids + 1] = name_field(name), id
  end
  if has_deadline then
    local untied = seldom_list('untied')
    untied[#untied + 1] = 'job|' .. id
  end
  return name or has_deadline
end

--- A job is claimed for the first time. It gives up a name that stands until then.
local function give_up_name(id, job)
  if job.stands and job.stands:sub(1, 6) == 'claim:' then
    local named, ids = seldom_list('named'), seldom_list('named_ids')
    named[#named + 1], ids[#ids + 1] = name_field(job.unique), id
  end
end

--- A job leaves Redis. `job` is its record; `outcome` says how it ended, `fence` under which claim. If its id is remembered, that is kept; a job
--- that was never claimed has done nothing, and one without an outcome is told of elsewhere.
local function leaves(id, job, outcome, fence)
  local gone = seldom_list('gone')
  gone[#gone + 1] = id
  if facts.ties then
    untie(id, job)
    local once = job.claim and job.once
    if outcome and (once or job.keep) then
      local more = job.keep and ' task=' .. job.task .. (job.reason and ' reason=' .. job.reason or '')
      memory.keep(id, outcome, outcome == 'dead' and job.since or now_text, fence, once, job.call, job.keep, more)
    end
  end
end

--- A job succeeds, and leaves Redis: what ends with it, and what is kept; see all_leave. Returns false if nothing does. If the next job
--- may end in the same way, it returns how the line of the result begins, until when that is kept, and the fence as the event has it.
--- Else it returns nil: the next job's line has to be taken apart.
local function leave(id, line, events, at, value, note)
  local is_tied, once, keep = untie(id, line), nil, nil
  if facts.remembers then
    once, keep = told_in(line, ' once='), told_in(line, ' keep=')
  end
  if not once and not keep then
    if is_tied then
      return nil
    end
    return false
  end
  local fence, more, is_usual = told_in(line, ' fence='), keep and ' task=' .. told_in(line, ' task='), false
  if keep and not value then
    more = more .. ' value=not_kept'
  elseif keep and value:byte() == NO_VALUE then
    value, more = nil, more .. ' value=' .. value:sub(2)
  elseif keep and note and note ~= '' then
    local ending = '"]'
    is_usual = not is_tied and not once and #note == DIGEST_LENGTH and note:byte() ~= FULL
    if note:byte() == FULL then
      note = note:sub(2)
      if facts.audit == 'on' and fact('backlog_bytes') < fact('backlog_max_bytes') then
        ending, more = '",' .. cjson.encode(value) .. ']', more .. ' audit=full'
      end
    end
    events[at] = '["' .. id .. '","' .. fence .. '","' .. note .. ending
  end
  local beginning, until_ms = memory.keep(id, 'succeeded', now_text, fence, once, once and told_in(line, ' call='), keep, more, value)
  if is_usual then
    return beginning, until_ms, '","' .. fence .. '","'
  end
  return nil
end

--- How a line begins, up to its place in line; nil if anything but `since` stands behind that.
local function alike_from(line)
  local _, last = line:find(' seq=', 1, true)
  return last and line:find(BEHIND_ALIKE, last + 1) and line:sub(1, last)
end

--- Jobs succeed, and leave Redis. `lines` are theirs, in order; false for a job that is not among them. By the same places `given` has
--- the values that are kept: JSON, or `!` and the reason why there is none. `notes` has the digest of each value, for the job's event.
--- If `+` stands before the digest, the event gets the value as well, unless the log is at its bound. `events` are those of `ids`.
---
--- Lines of jobs that were claimed together begin alike, up to their places in line: that is cheaper to see than what they say.
local function all_leave(ids, lines, events, given, notes)
  local at = 0
  local alike                      -- how the last line begins that was taken apart, if what ends with its job is nothing, or as usual…
  local told, until_ms, fenced     -- …and what `leave` says of it
  for i = 1, #lines do
    local line = lines[i]
    if line then
      at = at + 1
      local id, value, note = ids[at], given[i], notes[i]
      local is_alike = alike and line:find(alike, 1, true) == 1 and line:find(BEHIND_ALIKE, #alike + 1)
      if is_alike and told and value and note and #note == DIGEST_LENGTH and value:byte() ~= NO_VALUE then
        events[at] = '["' .. id .. fenced .. note .. '"]'
        memory.keep_alike(id, told, until_ms, value)
      elseif not is_alike or told then
        told, until_ms, fenced = leave(id, line, events, at, value, note)
        alike = told ~= nil and alike_from(line)
      end
    end
  end
end

--- A job dies, for this reason: its record says so, and the caller writes its line.
local function dies(id, job, why)
  job.state, job.reason = 'dead', why
  read_now('dead_retention_ms')
  local died = seldom_list('died')
  died[#died + 1] = id
  if facts.ties then
    untie(id, job)
  end
end

--- Remove jobs, which have ended.
local function remove_jobs(ids)
  call_many('HDEL', state, ids)
  call_many('HDEL', jobs, ids)
  tell_ended(ids)
end

--- Before the first write: check the type of a key that only `write_ended` writes, and read who holds the names of the jobs that
--- end. A name may be another job's by now. Nothing has to be done if nothing is `seldom`.
local function check_ended()
  if seldom.untied then
    check_keys()
  end
  memory.make_room()
  local named = seldom.named
  if named then
    local ids, held_by, freed = seldom.named_ids, read_many(slots, named), seldom_list('freed')
    for i = 1, #named do
      if held_by[i] == ids[i] then
        freed[#freed + 1] = named[i]
      end
    end
  end
end

--- Remove the jobs that leave. The file `dead` indexes those that die.
local function write_ended()
  remove_jobs(seldom.gone)
  call_many('ZREM', expiring, seldom.untied)
  call_many('HDEL', slots, seldom.freed)
  memory.write()
  tell_ended(seldom.died)
end
