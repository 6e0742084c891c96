--[[ success_results: jobs that succeed, and leave Redis together. What ends with them is decided line by line, and what their handlers returned is
kept for those who wait.

Lines of jobs that were claimed together begin alike, up to their places in line: that is cheaper to see than what they say.

Meta: remembers audit
Later: backlog_bytes backlog_max_bytes
Uses: call(now_text) meta(facts fact) state(field_in) results(keep_outcome keep_alike)
]]

local FULL = 43       -- `+`, before the digest of a value that is to stand in the log
local NO_VALUE = 33   -- `!`, before the reason why there is no value; JSON does not begin so
local DIGEST_LENGTH = 32
local BEHIND_ALIKE = '^%d+ since=%d+$'   -- how a line ends behind ` seq=` if it has no deadline and no reason

--- A job succeeds: what ends with it, and what is kept; see end_successes. Returns false if nothing does. If the next job may end in the
--- same way, it returns how the line of the result begins, until when that is kept, and the fence as the event has it. Else it returns
--- nil: the next job's line has to be taken apart.
local function end_success(id, line, events, at, value, note)
  local is_tied, once, keep = decide_parts(id, nil, line, 'succeeded'), nil, nil
  if facts.remembers then
    once, keep = field_in(line, ' once='), field_in(line, ' keep=')
  end
  if not once and not keep then
    if is_tied then
      return nil
    end
    return false
  end
  local fence, more, is_usual = field_in(line, ' fence='), keep and ' task=' .. field_in(line, ' task='), false
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
  local beginning, until_ms = keep_outcome(id, 'succeeded', now_text, fence, once, once and field_in(line, ' call='), keep, more, value)
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
local function end_successes(ids, lines, events, given, notes)
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
        keep_alike(id, told, until_ms, value)
      elseif not is_alike or told then
        told, until_ms, fenced = end_success(id, line, events, at, value, note)
        alike = told ~= nil and alike_from(line)
      end
    end
  end
end
